"""A worker's doctor: settings, the host's limits, a backend's answers, and a Prometheus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay_sandbox.kafka.local import free_port
from forebay_schemas.doctor.findings import Status
from forebay_worker.answers.endpoints import shape_of
from forebay_worker.answers.judge import judge
from forebay_worker.doctor.answers import Answered, Call, answer_finding, calls_for, next_is_worth_it
from forebay_worker.doctor.gpu import check_gpu
from forebay_worker.doctor.host import HostLimits, host_findings, read_host_limits
from forebay_worker.doctor.settings import settings_findings
from forebay_worker.execution.answer_body import ANSWER_LIMITS
from forebay_worker.settings import WorkerSettings, load_worker_settings
from harness.doctor import backend, black_hole

MIB = 1024 * 1024
HTTP: dict[str, Any] = {"backend_url": "http://engine"}
HANDLER: dict[str, Any] = {"handler": "a:b"}
PROMETHEUS: dict[str, Any] = {"gpu": "prometheus", "gpu_prometheus_url": "http://prom"}
PATHS = {"chat_completion": "/v1/chat/completions", "completion": "/v1/completions", "embedding": "/v1/embeddings"}
CHAT, COMPLETION, EMBEDDING = calls_for(PATHS, "m")
ANSWER = '{"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]}'
NO_MODEL = '{"error": "The model `m` does not exist."}'


def answered_with(status: int, text: str, call: Call) -> Answered:
    verdict = judge(shape=shape_of(call.path), status=status, content_type="", body=text.encode(), limits=ANSWER_LIMITS)
    return Answered(status=status, verdict=verdict, seconds=0.25, location="https://e.example/")


def load(**flags: Any) -> WorkerSettings:
    return load_worker_settings(flags=flags, config=None)


@pytest.mark.parametrize(
    "given",
    [
        HTTP,
        HANDLER,
        {**HTTP, "limit_min": 8, "limit_start": 16, "prefill_seconds_max": 0.1, "backend_api_key": "k"},
        {**HTTP, "pacing_policy": "slo_aimd", "tpot_target_seconds": 0.05},
        {**HTTP, "pacing_policy": "gpu_target", "gpu_utilisation_target": 0.8},
        {**HTTP, **PROMETHEUS, "gpu_prometheus_query": "up", "pacing_policy": "gpu_target"},
        {**HANDLER, "gpu": "nvml", "gpu_devices": "0"},
    ],
)
def test_settings_that_fit_together_give_one_line(given: dict[str, Any]) -> None:
    assert [(one.status, one.detail) for one in settings_findings(load(**given))] == [
        (Status.OK, "no setting contradicts another")
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {**HTTP, "pacing_policy": "gradient2", "tpot_target_seconds": 0.05},
            ["FOREBAY_TPOT_TARGET_SECONDS has no effect: FOREBAY_PACING_POLICY is gradient2, and only slo_aimd reads"],
        ),
        (
            {**HTTP, "gpu_utilisation_target": 0.8},
            ["FOREBAY_GPU_UTILISATION_TARGET has no effect: FOREBAY_PACING_POLICY is slo_aimd"],
        ),
        (
            {**HTTP, "pacing_policy": "fixed", "limit_min": 1, "limit_start": 2, "prefill_seconds_max": 1.0},
            ["FOREBAY_LIMIT_MIN has", "FOREBAY_LIMIT_START has", "FOREBAY_PREFILL_SECONDS_MAX has"],
        ),
        (
            {**HANDLER, "backend_api_key": "hush", "engine_priority": "lower_first"},
            ["FOREBAY_BACKEND_API_KEY has no effect: FOREBAY_HANDLER", "FOREBAY_ENGINE_PRIORITY has no effect"],
        ),
        ({**HTTP, "gpu": "none", "gpu_devices": "0"}, ["FOREBAY_GPU_DEVICES has no effect: FOREBAY_GPU is none"]),
        (
            {**HTTP, "gpu": "nvml", "gpu_prometheus_url": "http://prom", "gpu_prometheus_query": "up"},
            ["FOREBAY_GPU_PROMETHEUS_URL has no effect", "FOREBAY_GPU_PROMETHEUS_QUERY has no effect"],
        ),
        (
            {**HTTP, "backend_connect_seconds": 9.0, "backend_timeout_seconds": 3.0},
            ["FOREBAY_BACKEND_CONNECT_SECONDS (9) is longer than FOREBAY_BACKEND_TIMEOUT_SECONDS (3)"],
        ),
    ],
)
def test_a_setting_without_effect_is_named_with_the_one_that_takes_it(given: dict[str, Any], words: list[str]) -> None:
    findings = settings_findings(load(**given))
    assert [one.status for one in findings] == [Status.WARNING] * len(words)
    assert [one.detail for one in findings if "hush" in one.detail] == []
    for finding, said in zip(findings, words, strict=True):
        assert finding.detail.startswith(said)


def test_pacing_by_a_gpu_that_is_not_asked_fails() -> None:
    [finding] = settings_findings(load(**HTTP, pacing_policy="gpu_target", gpu="none"))
    assert finding.status is Status.FAILED
    assert "FOREBAY_GPU=none never tells it" in finding.detail


@pytest.mark.parametrize(
    ("limits", "given", "words"),
    [
        ((None, None, None), {}, "no memory limit, no CPU limit, any number of open files"),
        ((576, 2.0, 1024), {}, "memory limit 576 MiB, CPU limit 2 cores, 1024 open files"),
        (
            (575, None, None),
            {},
            "the memory limit is 575 MiB; FOREBAY_BUFFER_BYTES_MAX, FOREBAY_IN_FLIGHT_BYTES_MAX and the worker may "
            "take 576 MiB",
        ),
        (
            (384, None, None),
            {"in_flight_bytes_max": 64 * MIB},
            "384 MiB, no CPU limit, any number of open files",
        ),
        ((None, 0.1, None), {}, "the CPU limit is 0.1 cores"),
        ((None, None, 627), {"limit_max": 500}, "627 files may be open; FOREBAY_LIMIT_MAX=500 needs 628"),
        ((None, None, 628), {"limit_max": 500}, "628 open files"),
        ((None, None, 100), {**HANDLER, "backend_url": None, "limit_max": 500}, "100 open files"),
    ],
)
def test_limits_of_the_host_that_the_settings_will_run_into_are_named(
    limits: tuple[int | None, float | None, int | None], given: dict[str, Any], words: str
) -> None:
    memory_mib, cores, files = limits
    memory_bytes = None if memory_mib is None else memory_mib * MIB
    settings = load(**{"buffer_bytes_max": 64 * MIB, **HTTP, **given})
    [finding] = host_findings(HostLimits(memory_bytes=memory_bytes, cores=cores, open_files=files), settings)
    assert words in finding.detail
    assert finding.status is (Status.OK if "open files" in words else Status.WARNING)


@pytest.mark.parametrize(
    ("memory", "cpu", "memory_bytes", "cores"),
    [
        ("536870912\n", "150000 100000\n", 512 * MIB, 1.5),
        ("max\n", "max 100000\n", None, None),
        ("", "", None, None),
        ("\xff", "5 0", None, None),
        (None, None, None, None),
    ],
)
def test_limits_are_those_of_the_cgroup_and_none_where_it_tells_none(
    tmp_path: Path, memory: str | None, cpu: str | None, memory_bytes: int | None, cores: float | None
) -> None:
    for name, text in (("memory.max", memory), ("cpu.max", cpu)):
        if text is not None:
            (tmp_path / name).write_text(text, encoding="latin-1")
    limits = read_host_limits(tmp_path)
    assert (limits.memory_bytes, limits.cores) == (memory_bytes, cores)


def test_a_backend_is_asked_for_one_token_of_the_model_that_is_named() -> None:
    assert [call.path for call in (CHAT, COMPLETION, EMBEDDING)] == list(PATHS.values())
    assert (CHAT.payload["max_tokens"], COMPLETION.payload["max_tokens"]) == (1, 1)
    assert {call.payload["model"] for call in (CHAT, COMPLETION, EMBEDDING)} == {"m"}
    assert not any("model" in call.payload for call in calls_for(PATHS, None))


@pytest.mark.parametrize(
    ("status", "text", "call", "worth_it"),
    [
        (200, '{"choices": [{"message": {}}]}', CHAT, False),
        (200, '{"data": [{"embedding": [1]}]}', EMBEDDING, False),
        (200, '{"choices": []}', CHAT, True),
        (200, '{"object": "error"}', CHAT, True),
        (404, "not found", CHAT, True),
        (400, "the model has no chat template", CHAT, True),
        (404, NO_MODEL, CHAT, False),
        (401, "", CHAT, False),
        (503, "loading", CHAT, False),
    ],
)
def test_another_path_is_tried_only_where_it_may_be_what_the_backend_serves(
    status: int, text: str, call: Call, worth_it: bool
) -> None:
    assert next_is_worth_it(answered_with(status, text, call)) is worth_it


@pytest.mark.parametrize(
    ("status", "text", "found", "words"),
    [
        (200, ANSWER, Status.OK, "http://e/v1/chat/completions answered in 0.250 s, model m"),
        (201, ANSWER, Status.OK, "http://e/v1/chat/completions answered in 0.250 s, model m"),
        (200, "<html>", Status.FAILED, "answers, but not as that API does: the answer is no JSON"),
        (200, "[]", Status.FAILED, "answers, but not as that API does: the answer is no object"),
        (200, '{"choices": []}', Status.FAILED, "the answer has no choices"),
        (200, '{"error": "Unexpected endpoint"}', Status.FAILED, "reported an error: Unexpected endpoint"),
        (200, '{"error": {"message": "soon", "code": 503}}', Status.WARNING, "it takes nothing now"),
        (307, "moved", Status.FAILED, "HTTP 307, redirects to https://e.example/ -> name the server itself"),
        (401, "no", Status.FAILED, "set FOREBAY_BACKEND_API_KEY"),
        (403, "no", Status.FAILED, "it refuses us"),
        (404, NO_MODEL, Status.FAILED, "it serves a, b, c, d and 1 more; name one of them"),
        (400, "unknown model: m", Status.FAILED, "it does not serve model m"),
        (404, "page not found", Status.FAILED, "no OpenAI-compatible API is there"),
        (429, "slow down", Status.WARNING, "it takes nothing now"),
        (503, "loading", Status.WARNING, "still loads its model"),
        (500, "boom", Status.FAILED, "look at the backend's own log"),
        (422, "bad field", Status.FAILED, "it refuses a plain request"),
    ],
)
def test_an_answer_says_what_to_do(status: int, text: str, found: Status, words: str) -> None:
    answered = answered_with(status, text, CHAT)
    finding = answer_finding(answered, CHAT, url="http://e", models=list("abcde"), has_key=False)
    assert finding.status is found
    assert words in f"{finding.detail} -> {finding.fix}"


def test_a_refused_key_is_to_be_corrected_and_a_missing_one_to_be_set() -> None:
    answered = answered_with(401, "", CHAT)
    fixes = [answer_finding(answered, CHAT, url="", models=(), has_key=has_key).fix for has_key in (True, False)]
    assert fixes == ["correct FOREBAY_BACKEND_API_KEY", "set FOREBAY_BACKEND_API_KEY"]


def vector(*percents: str) -> Callable[[], bytes]:
    """An answer whose samples are as young as its call."""

    def answer() -> bytes:
        result = [{"metric": {}, "value": [time.time(), percent]} for percent in percents]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    return answer


@pytest.mark.parametrize(
    ("status", "body", "found", "words"),
    [
        # The same answer also says how old the sample is, in seconds.
        (200, vector("40"), Status.OK, "utilisation 40%"),
        (200, vector("40", "much"), Status.WARNING, "unreadable sample"),
        (200, vector(), Status.FAILED, "the query's result is empty"),
        (200, b"<html>", Status.FAILED, "the answer is none of Prometheus' query API"),
        (401, b"who are you", Status.FAILED, "HTTP 401 Unauthorized"),
    ],
)
def test_what_a_prometheus_answers_is_told(
    status: int, body: bytes | Callable[[], bytes], found: Status, words: str
) -> None:
    with backend(status=status, body=body if isinstance(body, bytes) else body()) as url:
        finding = asyncio.run(check_gpu(load(**HTTP, gpu="prometheus", gpu_prometheus_url=url)))
    assert finding.status is found
    assert words in finding.detail
    assert (finding.fix is None) is (found is Status.OK)


def test_a_prometheus_that_is_not_there_or_hangs_fails() -> None:
    with black_hole() as address:
        for where, words in ((f"127.0.0.1:{free_port()}", "connection refused"), (address, "no answer within")):
            settings = load(**HTTP, gpu="prometheus", gpu_prometheus_url=f"http://{where}")
            finding = asyncio.run(check_gpu(settings))
            assert finding.status is Status.FAILED
            assert words in finding.detail
            assert "FOREBAY_GPU_PROMETHEUS_URL" in str(finding.fix)


def test_a_gpu_that_is_not_asked_for_is_skipped() -> None:
    assert asyncio.run(check_gpu(load(**HTTP, gpu="none"))).status is Status.SKIPPED
