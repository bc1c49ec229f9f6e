"""The simulated engine over real HTTP: OpenAI's API, the physics in real time, slots, the ledger and the metrics."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.server import EngineServer
from forebay_schemas.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

FAST = EnginePhysics(a_seconds=0.001, b_seconds=0, c_seconds=0)
ONE_SLOT = EnginePhysics(a_seconds=0.001, b_seconds=0, c_seconds=0, max_num_seqs=1, own_queue_max=1)
CHAT = "/v1/chat/completions"
WAIT_SECONDS_MAX = 20.0

Client = aiohttp.ClientSession


def with_engine(
    use: Callable[[Client], Awaitable[None]], *, physics: EnginePhysics = FAST, log_path: Path | None = None
) -> None:
    """Run `use` with a client of an engine that lives in this process."""

    async def run() -> None:
        server = EngineServer(physics=physics, models=["m", "m-alias"], clock=SystemClock(), log_path=log_path)
        async with server as engine, aiohttp.ClientSession(engine.url) as client:
            await use(client)

    asyncio.run(run())


def chat(max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": max_tokens, **fields}


async def stats(client: Client) -> dict[str, int]:
    async with client.get("/sandbox/requests") as response:
        counts: dict[str, int] = await response.json()
        return counts


async def wait_for_stats(client: Client, **expected: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        counts = await stats(client)
        seen = {name: counts[name] for name in expected}
        if seen == expected:
            return
        assert time.monotonic() < deadline, f"still {counts}"
        await asyncio.sleep(0.01)


def test_a_chat_is_answered_with_its_usage() -> None:
    async def use(client: Client) -> None:
        async with client.post(CHAT, json=chat(5), headers={"x-request-id": "r1"}) as response:
            assert response.status == 200
            assert response.headers["x-request-id"] == "r1"
            answer = await response.json()
        assert answer["id"] == "chatcmpl-r1"
        assert (answer["object"], answer["model"]) == ("chat.completion", "m")
        [choice] = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "flow " * 5}
        assert choice["finish_reason"] == "length"
        assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}

    with_engine(use)


def test_a_completion_is_answered_with_exact_lengths() -> None:
    async def use(client: Client) -> None:
        body = {"prompt": "x", "forebay_sandbox": {"prompt_tokens": 3000, "output_tokens": 3}, "priority": 7}
        async with client.post("/v1/completions", json=body) as response:
            answer = await response.json()
        assert answer["object"] == "text_completion"
        assert answer["choices"][0]["text"] == "flow flow flow "
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"] == {"prompt_tokens": 3000, "completion_tokens": 3, "total_tokens": 3003}

    with_engine(use)


async def events(response: aiohttp.ClientResponse) -> list[str]:
    text = (await response.read()).decode()
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]


def test_a_stream_gives_each_token_then_the_reason_then_the_usage() -> None:
    async def use(client: Client) -> None:
        body = chat(3, stream=True, stream_options={"include_usage": True})
        async with client.post(CHAT, json=body) as response:
            assert response.content_type == "text/event-stream"
            *chunks, end = await events(response)
        assert end == "[DONE]"
        first, *middle, last, usage = [json.loads(chunk) for chunk in chunks]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [chunk["choices"][0]["delta"] for chunk in middle] == [{"content": "flow "}] * 3
        assert last["choices"][0]["finish_reason"] == "length"
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        assert {chunk["object"] for chunk in (first, *middle, last, usage)} == {"chat.completion.chunk"}

    with_engine(use)


def test_a_stream_gives_no_usage_unasked() -> None:
    async def use(client: Client) -> None:
        async with client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "stream": True}) as response:
            *chunks, _ = await events(response)
        parsed = [json.loads(chunk) for chunk in chunks]
        assert [chunk["choices"][0]["text"] for chunk in parsed] == ["flow ", "flow ", ""]
        assert all("usage" not in chunk for chunk in parsed)

    with_engine(use)


def test_a_stream_flows_while_it_is_generated() -> None:
    async def use(client: Client) -> None:
        async with client.post(CHAT, json=chat(100_000, stream=True)) as response:
            for _ in range(3):
                await response.content.readuntil(b"\n\n")
            assert (await stats(client))["running"] == 1

    with_engine(use)


def test_models_and_health_answer() -> None:
    async def use(client: Client) -> None:
        async with client.get("/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["m", "m-alias"]
        async with client.get("/health") as response:
            assert response.status == 200

    with_engine(use)


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (json.dumps(chat(model="other")), 404, "model", "model_not_found"),
        ('{"model": "m"', 400, "body", None),
        (json.dumps({"model": "m"}), 400, "messages", None),
        (json.dumps(chat(0)), 400, "max_tokens", None),
        (json.dumps(chat(400_000)), 400, "messages", "context_length_exceeded"),
    ],
)
def test_a_bad_body_gets_an_error_in_openais_shape(body: str, status: int, param: str, code: str | None) -> None:
    async def use(client: Client) -> None:
        async with client.post(CHAT, data=body) as response:
            assert response.status == status
            error = (await response.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["param"], error["code"]) == (param, code)
        assert param.removesuffix("s") in error["message"] or code
        assert (await stats(client))["refused"] == 1

    with_engine(use)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(stream: bool, tmp_path: Path) -> None:
    log_path = tmp_path / "ledger.jsonl"

    async def use(client: Client) -> None:
        async def leave() -> None:
            async with client.post(CHAT, json=chat(100_000, stream=stream), headers={"x-request-id": "left"}) as answer:
                await answer.read()

        leaving = asyncio.create_task(leave())
        await wait_for_stats(client, running=1)
        leaving.cancel()
        await wait_for_stats(client, running=0, kv_used_tokens=0, in_flight=0, disconnected=1)
        async with client.post(CHAT, json=chat()) as response:
            assert response.status == 200

    with_engine(use, physics=ONE_SLOT, log_path=log_path)
    left, completed = [json.loads(line) for line in log_path.read_text().splitlines()]
    assert (left["request_id"], left["outcome"]) == ("left", "disconnected")
    assert completed["outcome"] == "completed"


def test_a_waiting_client_that_leaves_is_never_run() -> None:
    async def use(client: Client) -> None:
        async def send() -> None:
            async with client.post(CHAT, json=chat(100_000)) as answer:
                await answer.read()

        running = asyncio.create_task(send())
        await wait_for_stats(client, running=1)
        waiting = asyncio.create_task(send())
        await wait_for_stats(client, waiting=1)
        waiting.cancel()
        await wait_for_stats(client, running=1, waiting=0, disconnected=1)
        running.cancel()

    with_engine(use, physics=ONE_SLOT)


def test_a_full_queue_refuses_with_503() -> None:
    async def use(client: Client) -> None:
        async def status_of(max_tokens: int) -> int:
            async with client.post(CHAT, json=chat(max_tokens)) as response:
                await response.read()
                return response.status

        running = asyncio.create_task(status_of(100_000))
        await wait_for_stats(client, running=1)
        waiting = asyncio.create_task(status_of(1))
        await wait_for_stats(client, waiting=1)
        assert await status_of(1) == 503
        running.cancel()
        assert await waiting == 200

    with_engine(use, physics=ONE_SLOT)


def test_a_batch_takes_the_time_that_the_physics_says() -> None:
    physics = EnginePhysics(a_seconds=0.01, b_seconds=0.001, c_seconds=0, max_num_seqs=10)
    # The second ten wait for the first: 2 * (0.01 + 19 * (0.01 + 10 * 0.001)) = 0.78 s
    expected_seconds = 2 * (0.01 + 19 * 0.02)

    async def use(client: Client) -> None:
        async def send() -> int:
            async with client.post(CHAT, json=chat(20)) as response:
                await response.read()
                return response.status

        started = time.monotonic()
        assert await asyncio.gather(*(send() for _ in range(20))) == [200] * 20
        # The first request may start a step before the others come. One after another they would take 4.4 s.
        assert expected_seconds * 0.99 <= time.monotonic() - started < 3.5

    with_engine(use, physics=physics)


def test_the_peak_of_concurrency_is_seen_and_reset() -> None:
    async def use(client: Client) -> None:
        async def send(max_tokens: int) -> None:
            async with client.post(CHAT, json=chat(max_tokens)) as response:
                assert response.status == 200

        await asyncio.gather(*(send(100) for _ in range(7)))
        counts = await stats(client)
        assert (counts["in_flight_peak"], counts["completed"], counts["output_tokens"]) == (7, 7, 700)
        async with client.post("/sandbox/reset") as response:
            assert response.status == 204
        counts = await stats(client)
        assert (counts["in_flight_peak"], counts["received"], counts["completed"]) == (0, 0, 0)

    with_engine(use)


def test_the_ledger_has_a_line_for_every_request(tmp_path: Path) -> None:
    log_path = tmp_path / "ledger.jsonl"
    before_ms = time.time() * 1000

    async def use(client: Client) -> None:
        for request_id, body in [("good", chat(3)), ("bad", {"messages": 5})]:
            async with client.post(CHAT, json=body, headers={"x-request-id": request_id}) as response:
                await response.read()
        good, bad = [json.loads(line) for line in log_path.read_text().splitlines()]
        assert (good["request_id"], good["outcome"], good["status"]) == ("good", "completed", 200)
        assert (good["prompt_tokens"], good["output_tokens"], good["fault"]) == (2, 3, None)
        assert before_ms - 1 <= good["started_at_ms"] <= good["ended_at_ms"] <= time.time() * 1000
        assert (bad["request_id"], bad["outcome"], bad["status"]) == ("bad", "refused", 400)

    with_engine(use, log_path=log_path)


def test_the_metrics_have_vllms_names_and_true_values() -> None:
    async def use(client: Client) -> None:
        bodies = [chat(4), chat(4), chat(9, forebay_sandbox={"output_tokens": 2})]
        for body in bodies:
            async with client.post(CHAT, json=body) as response:
                await response.read()
        running = asyncio.create_task(client.post(CHAT, json=chat(100_000)))
        await wait_for_stats(client, running=1)
        async with client.get("/metrics") as response:
            text = await response.text()
        running.cancel()
        samples = {
            (sample.name, sample.labels.get("finished_reason")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels["model_name"] == "m"
        }
        value = {name: samples[name, None] for name, reason in samples if reason is None}
        assert value["vllm:num_requests_running"] == 1
        assert value["vllm:num_requests_waiting"] == 0
        assert 0 < value["vllm:kv_cache_usage_perc"] == value["vllm:gpu_cache_usage_perc"] < 1
        assert value["vllm:num_preemptions_total"] == 0
        assert value["vllm:prompt_tokens_total"] in (6, 8)  # the running one may be about to be prefilled
        assert value["vllm:generation_tokens_total"] >= 10
        assert value["sandbox:busy_seconds_total"] > 0
        assert samples["vllm:request_success_total", "length"] == 2
        assert samples["vllm:request_success_total", "stop"] == 1
        assert value["vllm:time_to_first_token_seconds_count"] in (3, 4)
        assert value["vllm:e2e_request_latency_seconds_count"] == 3
        assert value["vllm:inter_token_latency_seconds_count"] == value["vllm:time_per_output_token_seconds_count"] >= 7

    with_engine(use)


def test_a_refusal_ordered_on_its_own_port_needs_an_end() -> None:
    async def use(client: Client) -> None:
        async with client.put("/sandbox/faults", json={"faults": [{"kind": "refuse"}]}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "seconds"
        async with client.put("/sandbox/faults", json={"faults": [{"kind": "refuse", "seconds": 1}]}) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                async with client.get("/health") as response:
                    assert response.status == 200
                    return
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)
        pytest.fail("the port stayed closed")

    with_engine(use)


def test_faults_that_are_not_json_are_refused() -> None:
    async def use(client: Client) -> None:
        async with client.put("/sandbox/faults", data="{") as response:
            assert response.status == 400
            assert "JSON" in (await response.json())["error"]["message"]

    with_engine(use)
