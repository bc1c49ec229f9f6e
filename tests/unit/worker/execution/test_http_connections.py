"""Connections: which one carries a request, how long they live, and leftovers of earlier answers on them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.execution.api_key import LOOK_SECONDS, ApiKey
from forebay_worker.execution.http_backend import execution_id
from forebay_worker.request.work import Answer, Failure
from harness.balancer import balancing
from harness.http_backends import ask, asking, calling, outcome_of
from harness.raw_engine import AnswerRaw, RawRequest, raw_engine, response, written
from simulated.works import make_work

ANSWER = response(msgspec.json.encode({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}))


def taking(seconds: float) -> AnswerRaw:
    """An engine whose requests take ``seconds``."""

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        writer.write(ANSWER)

    return answer


@pytest.mark.parametrize("age_seconds", [(0.2, 0.3), (30.0, 60.0)])
def test_an_engine_that_joins_behind_a_balancer_of_connections_gets_its_part(age_seconds: tuple[float, float]) -> None:
    """Eight requests at a time, of 20 ms; the second engine joins after the first 40."""

    async def scenario() -> tuple[int, int]:
        async with (
            raw_engine(taking(0.02)) as first,
            raw_engine(taking(0.02)) as second,
            balancing(first.url) as balancer,
            calling(balancer.url, options={"age_seconds": age_seconds}) as backend,
        ):

            async def client(count: int) -> None:
                for _ in range(count):
                    assert isinstance(await outcome_of(backend), Answer)

            await asyncio.gather(*(client(5) for _ in range(8)))
            balancer.backends.append(second.url)
            until = time.monotonic() + 30.0

            async def go_on() -> None:
                while len(second.requests) < 40 and time.monotonic() < until:
                    await client(1)
                    if age_seconds[0] > 1 and len(first.requests) > 120:
                        return

            await asyncio.gather(*(go_on() for _ in range(8)))
            return len(first.requests), len(second.requests)

    first, second = asyncio.run(scenario())
    if age_seconds[0] < 1:
        assert second >= 40, "connections are made anew, and every other one goes to it"
    else:
        assert (first > 120, second) == (True, 0), "without an age the balancer has nothing to balance"


def test_a_request_that_runs_while_its_connection_gets_too_old_ends_in_peace() -> None:
    async def scenario() -> list[int]:
        async with asking(taking(0.3), options={"age_seconds": (0.05, 0.05)}) as (backend, engine):
            long = asyncio.create_task(outcome_of(backend))
            await asyncio.sleep(0.15)
            assert isinstance(await outcome_of(backend), Answer)
            assert isinstance(await long, Answer)
            return [request.connection for request in engine.requests]

    assert asyncio.run(scenario()) == [0, 1]


def closing(after_seconds: float, *, first_requests: int) -> AnswerRaw:
    """An engine that closes the connection of each further request, unanswered."""
    count = [0]

    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        count[0] += 1
        if request.connection == 0 and count[0] > first_requests:
            await asyncio.sleep(after_seconds)
            writer.close()
        else:
            writer.write(ANSWER)

    return answer


def test_a_kept_connection_that_was_closed_while_idle_costs_nothing() -> None:
    async def scenario() -> tuple[list[Answer | Failure], int]:
        async with asking(closing(0.0, first_requests=1)) as (backend, engine):
            return [await outcome_of(backend) for _ in range(2)], len(engine.requests)

    outcomes, requests = asyncio.run(scenario())
    assert all(isinstance(outcome, Answer) for outcome in outcomes)
    assert requests == 3, "it was sent again on a new connection"


def test_a_request_that_was_worked_on_is_not_sent_twice() -> None:
    async def scenario() -> tuple[Answer | Failure, int]:
        async with asking(closing(1.2, first_requests=1)) as (backend, engine):
            await outcome_of(backend)
            return await outcome_of(backend), len(engine.requests)

    failure, requests = asyncio.run(scenario())
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.of_backend) == (Reason.BACKEND_UNAVAILABLE, True)
    assert requests == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    async def scenario() -> tuple[Answer | Failure, int]:
        async with raw_engine(written(ANSWER)) as elsewhere:
            location = elsewhere.url.replace("//", "//user:s3cret@") + "/v1/chat/completions"
            told = response(b"moved", status=status, headers={"location": location})
            async with asking(written(told)) as (backend, _):
                return await outcome_of(backend), len(elsewhere.requests)

    failure, requests_elsewhere = asyncio.run(scenario())
    assert requests_elsewhere == 0
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.http_status) == (Reason.BACKEND_BAD_RESPONSE, status)
    assert "redirects to http://127.0.0.1:" in failure.error
    assert "s3cret" not in failure.error


def test_no_cookie_of_an_answer_is_sent_with_another_request() -> None:
    async def scenario() -> list[str | None]:
        told = ANSWER.replace(b"\r\n\r\n", b"\r\nset-cookie: affinity=replica-7\r\n\r\n", 1)
        async with raw_engine(written(told)) as engine:
            # Cookies are not kept of addresses that are numbers.
            async with calling(engine.url.replace("127.0.0.1", "localhost")) as backend:
                for _ in range(2):
                    assert isinstance(await outcome_of(backend), Answer)
            return [request.headers.get("cookie") for request in engine.requests]

    assert asyncio.run(scenario()) == [None, None]


# Ids


def holding_ids(seconds: float) -> AnswerRaw:
    """An engine that takes x-request-id for its own, works for a while, and refuses an id that it still works on."""
    running: set[str] = set()

    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        request_id = request.headers["x-request-id"]
        if request_id in running:
            writer.write(response(b"already running", status=400))
            return
        running.add(request_id)
        await asyncio.sleep(seconds if len(running) == 1 else 0.0)
        writer.write(ANSWER)

    return answer


def test_an_engine_that_still_works_on_an_earlier_execution_takes_the_next_one() -> None:
    async def scenario() -> list[Answer | Failure]:
        async with asking(holding_ids(5.0), backend_timeout_seconds=0.2) as (backend, _):
            return [await outcome_of(backend, headers=[("forebay-attempt", b"%d" % n)]) for n in (1, 2)]

    first, second = asyncio.run(scenario())
    assert isinstance(first, Failure)
    assert first.reason is Reason.BACKEND_TIMEOUT
    assert isinstance(second, Answer)


def test_each_execution_has_an_id_of_its_own() -> None:
    async def scenario() -> list[str]:
        async with asking(written(ANSWER)) as (backend, engine):
            work = make_work(request_id="a")
            # The same attempt again: the backend's failure was not the request's.
            for _ in range(2):
                await backend.run(work)
            histories: tuple[list[tuple[str, bytes | None]], ...] = (
                [("forebay-attempt", b"2")],
                [("forebay-replay-count", b"1")],
                [("forebay-replay-count", b"1"), ("forebay-attempt", b"3")],
            )
            for headers in histories:
                await backend.run(make_work(request_id="a", headers=headers))
            crashed = make_work(request_id="a")
            crashed.crashes = 1
            await backend.run(crashed)
            assert {request.headers["x-forebay-request-id"] for request in engine.requests} == {"a"}
            return [request.headers["x-request-id"] for request in engine.requests]

    ids = asyncio.run(scenario())
    assert ids == ["a", "a-u1", "a-2", "a-r1", "a-r1-3", "a-c1"]


def test_an_execution_that_was_never_begun_has_the_request_s_id() -> None:
    assert execution_id(make_work(request_id="a")) == "a"


# Keys


def asking_for(keys: set[str]) -> AnswerRaw:
    """An engine that takes these keys."""

    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if request.headers.get("authorization", "").removeprefix("Bearer ") in keys:
            writer.write(ANSWER)
        else:
            writer.write(response(b"who are you", status=401))

    return answer


def test_a_rotated_key_costs_no_request(tmp_path: Path) -> None:
    file, keys = tmp_path / "key", {"old"}
    file.write_text("old\n", encoding="utf-8")

    async def scenario() -> tuple[list[Answer | Failure], Counter[str]]:
        reference = f"${{directory:{tmp_path}:key}}"
        async with asking(asking_for(keys), backend_api_key=reference) as (backend, engine):
            outcomes = [await outcome_of(backend)]
            keys.clear()
            keys.add("new")
            file.write_text("new\n", encoding="utf-8")
            outcomes += await asyncio.gather(*(outcome_of(backend) for _ in range(60)))
            outcomes.append(await outcome_of(backend))
            return outcomes, Counter(request.headers["authorization"] for request in engine.requests)

    outcomes, asked = asyncio.run(scenario())
    assert all(isinstance(outcome, Answer) for outcome in outcomes)
    assert asked["Bearer new"] == 61
    assert asked["Bearer old"] <= 61


def test_a_key_that_stays_refused_is_not_asked_for_twice(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("wrong", encoding="utf-8")

    async def scenario() -> tuple[Answer | Failure, int]:
        reference = f"${{directory:{tmp_path}:key}}"
        async with asking(asking_for({"right"}), backend_api_key=reference) as (backend, engine):
            return await outcome_of(backend), len(engine.requests)

    failure, requests = asyncio.run(scenario())
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.http_status, requests) == (Reason.BACKEND_REJECTED, 401, 1)


def test_a_key_file_is_read_again_after_a_while_and_may_be_away(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("one", encoding="utf-8")
    key = ApiKey(f"${{directory:{tmp_path}:key}}", now=0.0)
    file.write_text("two", encoding="utf-8")
    assert key.value(LOOK_SECONDS - 0.1) == "one"
    assert key.value(LOOK_SECONDS) == "two"
    file.unlink()
    assert key.value(2 * LOOK_SECONDS) == "two"
    assert not key.has_another("two")


def test_a_key_that_is_no_file_stays() -> None:
    key = ApiKey("s3cret", now=0.0)
    assert key.value(1e9) == "s3cret"
    assert not key.has_another("s3cret")


def test_an_engine_that_is_away_is_said_to_be() -> None:
    failure = ask(written(b"", then_close=True))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.of_backend, failure.reached) == (Reason.BACKEND_UNAVAILABLE, True, True)
