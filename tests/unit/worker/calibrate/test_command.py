"""A calibration from its arguments to its result, on a target of a few lines."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time

import pytest
from typer.testing import CliRunner

from forebay_schemas.errors import UsageError
from forebay_worker.calibrate.knee import recommend
from forebay_worker.calibrate.prepare import Patience, probe
from forebay_worker.calibrate.requests import (
    Asked,
    Lengths,
    MadeAsks,
    SampledAsks,
    read_lengths,
    read_requests,
    text_of,
)
from forebay_worker.calibrate.run import Bounds, Calibrator, Found, Pulse
from forebay_worker.calibrate.samples import Ended, Trouble
from forebay_worker.calibrate.target import UnusableBackendError
from forebay_worker.cli import app
from forebay_worker.signals.readings import EngineReading, GpuReading
from harness.virtual_time import LoopClock, run_virtually


@pytest.mark.parametrize(("text", "lengths"), [("1000", Lengths(1000, 1000)), (" 50-200 ", Lengths(50, 200))])
def test_lengths_are_a_number_or_a_range(text: str, lengths: Lengths) -> None:
    assert read_lengths(text, field="--prompt-tokens") == lengths


@pytest.mark.parametrize("text", ["", "0", "-5", "a", "200-50", "1-2-3", "1.5", "99999999"])
def test_other_lengths_are_refused_with_the_fix(text: str) -> None:
    with pytest.raises(UsageError, match=r"--prompt-tokens: is .*give a number of tokens, or a range"):
        read_lengths(text, field="--prompt-tokens")


def prompts(asks: MadeAsks, count: int) -> list[str]:
    return [asks.next().payload["messages"][0]["content"] for _ in range(count)]


def test_no_two_prompts_begin_alike() -> None:
    asks = MadeAsks(prompt=Lengths(500, 500), output=Lengths(10, 10), model="m", is_unique=True, seed=1)
    made = prompts(asks, 200)
    assert len({prompt[:20] for prompt in made}) == len(made)
    assert {len(prompt) for prompt in made} == {2000}


def test_prompts_are_alike_when_that_is_asked_for() -> None:
    asks = MadeAsks(prompt=Lengths(50, 50), output=Lengths(10, 10), model=None, is_unique=False, seed=1)
    assert len(set(prompts(asks, 5))) == 1


def test_prompts_get_as_long_as_the_backend_s_own_tokens_say() -> None:
    asks = MadeAsks(prompt=Lengths(100, 100), output=Lengths(1, 1), model=None, is_unique=True, seed=1)
    asks.answered(Asked(biz_type="chat_completion", payload={}, prompt_characters=400), prompt_tokens=400)
    assert len(prompts(asks, 1)[0]) == 100  # a token is one character here


@pytest.mark.parametrize("characters", [1, 5, 59, 60, 61, 1000, 350_000])
def test_texts_have_the_length_that_is_asked_for(characters: int) -> None:
    assert len(text_of(characters, random.Random(1))) == characters


def test_a_sample_of_real_requests_is_sent_over_and_over_each_a_little_different() -> None:
    lines = [
        b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "one"}], "max_tokens": 5}',
        b"",
        b'{"request_id": "a", "biz_type": "completion", "payload": {"prompt": "two"}}',
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "three"}]}]}',
    ]
    batch = b'{"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": {"input": "four"}}'
    assert [one.biz_type for one in read_requests([batch], model="m", field="--requests")] == ["embedding"]
    requests = read_requests(lines, model="m", field="--requests")
    assert [one.biz_type for one in requests] == ["chat_completion", "completion", "chat_completion"]
    assert {one.payload["model"] for one in requests} == {"m"}
    asks = SampledAsks(requests, name="sample.jsonl", is_unique=True, seed=1)
    sent = [str(asks.next().payload) for _ in range(30)]
    assert len(set(sent)) == 30
    assert sum("one" in text for text in sent) == 10
    as_they_are = SampledAsks(requests, name="sample.jsonl", is_unique=False, seed=1)
    assert len({str(as_they_are.next().payload) for _ in range(30)}) == 3


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "holds no request"),
        ([b"{}", b"nonsense"], "line 2"),
        ([b"[1]"], "line 1"),
        ([b'{"payload": 5}'], "line 1"),
        ([b"\xff"], "line 1"),
        ([b"[" * 100_000], "line 1"),
        ([b'{"custom_id": "a", "url": "/v1/moderations", "body": {}}'], "line 1: url: is '/v1/moderations'"),
    ],
)
def test_a_bad_sample_is_refused_naming_the_line(lines: list[bytes], problem: str) -> None:
    with pytest.raises(UsageError, match=f"--requests: {problem}"):
        read_requests(lines, model=None, field="--requests")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt-tokens", "many"], "--prompt-tokens: is 'many'"),
        (["--requests", "no-such.jsonl"], "--requests: no-such.jsonl: No such file"),
        (["--max-concurrency", "0"], "--max-concurrency: is 0"),
        (["--max-duration", "never"], "--max-duration: is 'never'"),
        (["--window", "0s"], "--window: is '0s'"),
        (["--tpot", "-1"], "--tpot: is -1"),
        (["--write-settings", "no-such-folder/x.toml"], "no-such-folder is no folder"),
        (["--handler", "a:b"], "FOREBAY_BACKEND_URL: and FOREBAY_HANDLER are both set"),
    ],
)
def test_what_was_typed_wrong_is_said_before_anything_is_asked(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--backend-url", "http://127.0.0.1:9", *arguments])
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)


# --- all of it, on a target of a few lines


class Line:
    """A backend in this process: an answer among n takes a fixed part and n times its own; it fails with ``broken_at``
    in flight and more. For its first ``restless_seconds`` it gets slower and slower."""

    def __init__(self, *, fixed: float, own: float, broken_at: int = 10_000, restless_seconds: float = 0.0) -> None:
        self._fixed, self._own, self._broken_at = fixed, own, broken_at
        self._restless_seconds = restless_seconds
        self._began: float | None = None
        self._in_flight = 0
        self.most = 0

    async def run(self, _asked: Asked) -> Ended:
        clock = LoopClock()
        started = clock.monotonic()
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        try:
            self._began = started if self._began is None else self._began
            slower = 1.0 + min(started - self._began, self._restless_seconds)
            await asyncio.sleep((self._fixed + self._own * self._in_flight) * slower)
            is_broken = self._in_flight >= self._broken_at
        finally:
            self._in_flight -= 1
        trouble = Trouble.REFUSED if is_broken else None
        return Ended(started=started, ended=clock.monotonic(), trouble=trouble, error="HTTP 503" if is_broken else None)

    async def close(self) -> None:
        """Nothing is open."""


class Silence:
    """No engine and no GPU answers."""

    def latest_engine(self, _now: float) -> EngineReading | None:
        return None

    def latest_gpu(self, _now: float) -> GpuReading | None:
        return None


def calibrated(
    target: Line, *, seconds_max: float = 60.0, stop_after: float | None = None, said: list[str] | None = None
) -> Found:
    said = [] if said is None else said

    async def run() -> Found:
        stop = asyncio.Event()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, stop.set)
        return await Calibrator(
            target=target,
            asks=MadeAsks(prompt=Lengths(1, 1), output=Lengths(1, 1), model=None, is_unique=True, seed=1),
            signals=Silence(),
            pulse=Pulse(),
            bounds=Bounds(concurrency_max=16, window_seconds=0.05, seconds_max=seconds_max),
            clock=LoopClock(),
            stop=stop,
            say=said.append,
            began=LoopClock().monotonic(),
        ).run()

    return run_virtually(run())


def test_a_backend_that_breaks_ends_the_calibration_with_the_steps_before() -> None:
    target = Line(fixed=0.01, own=0.001, broken_at=4)
    found = calibrated(target)
    assert found.state == "stopped"
    assert "HTTP 503" in str(found.stopped_by)
    assert [step.concurrency for step in found.steps][:2] == [1, 2]
    assert target.most <= 4, "a sick backend must not get more load"


def test_ctrl_c_and_the_time_limit_leave_what_was_measured() -> None:
    interrupted = calibrated(Line(fixed=0.02, own=0.001), stop_after=0.7)
    assert interrupted.state == "interrupted"
    assert interrupted.steps
    over = calibrated(Line(fixed=0.02, own=0.001), seconds_max=0.7)
    assert over.state == "partial"
    assert "--max-duration" in str(over.stopped_by)


def test_steps_that_do_not_hold_still_are_measured_again_while_time_is_left() -> None:
    said: list[str] = []
    found = calibrated(Line(fixed=0.02, own=0.02, restless_seconds=8.0), said=said)
    of_one = [line for line in said if line.split()[0] == "1"]
    assert ["unstable" in line for line in of_one] == [True, False]
    assert found.state == "complete"
    assert [step.state for step in found.steps][:3] == ["stable"] * 3
    assert recommend(found.steps, tpot_seconds=None) is not None


def test_a_step_that_takes_long_says_how_far_it_is() -> None:
    said: list[str] = []
    found = calibrated(Line(fixed=4.5, own=0.001), seconds_max=30.0, said=said)
    assert found.state == "partial"
    assert found.seconds == pytest.approx(30.0, abs=0.2)
    assert said[0] == "   1 in flight: measuring, 2 answers; 20 s left"
    assert said[1] == "   1 in flight: measuring, 4 answers; 10 s left"


class Slow:
    """Answers each first request after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def settle(self, _asked: Asked) -> Ended:
        started = LoopClock().monotonic()
        await asyncio.sleep(self._seconds)
        return Ended(started=started, ended=LoopClock().monotonic(), prompt_tokens=10, output_tokens=2)


@pytest.mark.parametrize(
    ("answer_seconds", "bound_seconds", "waited_for", "lines"),
    [
        (math.inf, 15.0, "a first answer, of 2 tokens", 2),
        (20.0, 30.0, "a first answer of full length", 3),
        (20.0, 60.0, None, 4),
    ],
)
def test_the_first_answers_count_for_the_time_limit_and_are_told_of_while_they_take_long(
    answer_seconds: float, bound_seconds: float, waited_for: str | None, lines: int
) -> None:
    said: list[str] = []
    asks = MadeAsks(prompt=Lengths(1, 1), output=Lengths(1, 1), model=None, is_unique=True, seed=1)

    async def run() -> tuple[str | None, float]:
        patience = Patience(seconds=bound_seconds, clock=LoopClock(), say=said.append)
        try:
            await probe(Slow(min(answer_seconds, 1e6)), asks, patience)
        except UnusableBackendError as error:
            return str(error), LoopClock().monotonic()
        return None, LoopClock().monotonic()

    problem, seconds = run_virtually(run())
    if waited_for is None:
        assert problem is None
        assert seconds == pytest.approx(2 * answer_seconds)
    else:
        assert seconds == pytest.approx(bound_seconds)
        assert f"--max-duration, {bound_seconds:g} s, was over" in str(problem)
        assert str(problem).endswith(f"it waited for {waited_for}")
    assert said[0] == f"waiting for a first answer, of 2 tokens: 3 s of {bound_seconds:g} s"
    assert len(said) == lines


def test_a_backend_that_takes_connections_and_never_answers_ends_the_command_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        begun = time.monotonic()
        done = CliRunner().invoke(app, ["calibrate", "--backend-url", url, "--max-duration", "1s"])
        assert time.monotonic() - begun < 5.0
    assert isinstance(done.exception, UnusableBackendError)
    assert "--max-duration, 1 s, was over" in str(done.exception)
