"""Each fault does to a real connection what its name says, and ends when it is told to."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import EngineProcess, call, running_engine
from forebay_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAST = EnginePhysics(a_seconds=0.001, b_seconds=0, c_seconds=0)
CHAT = "/v1/chat/completions"
WAIT_SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[EngineProcess]:
    with running_engine(physics=FAST) as engine:
        yield engine


@pytest.fixture
def fast_engine(shared_engine: EngineProcess) -> EngineProcess:
    shared_engine.faults()
    wait_for(lambda: shared_engine.stats()["in_flight"] == 0)
    shared_engine.reset()
    return shared_engine


def post(engine: EngineProcess, *, timeout_seconds: float = 20, **fields: Any) -> http.client.HTTPResponse:
    """Send a chat and return the answer, unread."""
    address = urlsplit(engine.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_seconds)
    body = {"messages": [], "max_tokens": 20, **fields}
    try:
        connection.request("POST", CHAT, json.dumps(body), {"Connection": "close"})
        return connection.getresponse()
    finally:
        connection.close()  # the answer keeps the socket until it is read


def status_of(engine: EngineProcess, **fields: Any) -> int:
    with post(engine, **fields) as response:
        response.read()
        return response.status


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refuses(engine: EngineProcess) -> bool:
    try:
        call(engine.url, "GET", "/health")
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("status", [400, 500, 503])
def test_an_error_status_is_answered_until_the_fault_is_lifted(fast_engine: EngineProcess, status: int) -> None:
    fast_engine.faults({"kind": "status", "status": status})
    with post(fast_engine) as response:
        assert response.status == status
        assert json.loads(response.read())["error"]["message"] == f"injected fault: {status}"
    assert fast_engine.fault_hits() == [1]
    fast_engine.faults()
    assert status_of(fast_engine) == 200


def test_a_429_says_when_to_come_back(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "status", "status": 429, "retry_after_seconds": 3, "count": 1})
    with post(fast_engine) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
    assert status_of(fast_engine) == 200


def test_only_the_requests_that_match_meet_the_fault(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "status", "status": 500, "match": "poison"})
    assert [status_of(fast_engine, user=user) for user in ("good", "poison", "good")] == [200, 500, 200]


def test_a_hang_never_answers_and_ends_with_its_client(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "hang", "count": 1})
    with pytest.raises(TimeoutError):
        post(fast_engine, timeout_seconds=0.5)
    wait_for(lambda: fast_engine.stats()["in_flight"] == 0)
    assert fast_engine.stats()["disconnected"] == 1
    assert status_of(fast_engine) == 200


def test_a_cut_before_any_byte_runs_nothing(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "cut", "where": "before"})
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        post(fast_engine)
    stats = fast_engine.stats()
    assert (stats["failed"], stats["in_flight"], stats["running"]) == (1, 0, 0)


def test_a_cut_in_the_middle_leaves_half_a_body(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "cut", "where": "middle"})
    with post(fast_engine) as response, pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    assert caught.value.partial.startswith(b'{"id"')
    assert fast_engine.stats()["failed"] == 1


def test_a_stream_cut_in_the_middle_has_no_end(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "cut", "where": "middle"})
    with post(fast_engine, stream=True) as response, pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    assert b"data: " in caught.value.partial
    assert b"[DONE]" not in caught.value.partial
    wait_for(lambda: fast_engine.stats()["running"] == 0)


def test_slow_makes_every_step_longer(new_engine: Callable[..., EngineProcess]) -> None:
    engine = new_engine(physics=EnginePhysics(a_seconds=0.01, b_seconds=0, c_seconds=0))
    engine.faults({"kind": "slow", "factor": 5})
    started = time.monotonic()
    assert status_of(engine) == 200  # 20 steps of 10 ms, five times as long
    assert time.monotonic() - started > 0.99


def test_slow_for_some_leaves_the_others_fast(new_engine: Callable[..., EngineProcess]) -> None:
    engine = new_engine(physics=EnginePhysics(a_seconds=0.01, b_seconds=0, c_seconds=0))
    engine.faults({"kind": "slow", "factor": 20, "match": "slow-one"})
    seconds: dict[str, float] = {}

    def measure(user: str) -> None:
        started = time.monotonic()
        assert status_of(engine, user=user) == 200
        seconds[user] = time.monotonic() - started

    threads = [threading.Thread(target=measure, args=(user,)) for user in ("slow-one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seconds["slow-one"] > 20 * 0.199
    assert seconds["other"] < seconds["slow-one"] / 2


def test_a_refusal_cuts_what_is_open_and_lasts_until_told(fast_engine: EngineProcess) -> None:
    failures: list[Exception] = []

    def send_long() -> None:
        try:
            post(fast_engine, max_tokens=100_000)
        except (http.client.HTTPException, OSError) as error:
            failures.append(error)

    sender = threading.Thread(target=send_long)
    sender.start()
    wait_for(lambda: fast_engine.stats()["running"] == 1)
    fast_engine.faults({"kind": "refuse"})
    sender.join(WAIT_SECONDS_MAX)
    assert len(failures) == 1
    assert refuses(fast_engine)
    wait_for(lambda: fast_engine.stats()["failed"] == 1)
    fast_engine.faults()
    assert status_of(fast_engine) == 200


def test_a_refusal_with_seconds_ends_by_itself(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "refuse", "seconds": 2})
    assert refuses(fast_engine)
    wait_for(lambda: not refuses(fast_engine))
    assert fast_engine.fault_hits() == []
    assert status_of(fast_engine) == 200


def test_a_wrong_fault_is_refused_and_the_old_ones_stay(fast_engine: EngineProcess) -> None:
    fast_engine.faults({"kind": "status", "status": 503})
    with pytest.raises(SandboxError, match=r"faults\[0\].status"):
        fast_engine.faults({"kind": "status", "status": 42})
    assert status_of(fast_engine) == 503


def test_faults_answer_on_the_main_port_too(fast_engine: EngineProcess) -> None:
    spec = {"kind": "status", "status": 503}
    status, content = call(fast_engine.url, "PUT", "/sandbox/faults", {"faults": [spec]})
    assert status == 200
    assert call(fast_engine.url, "GET", "/sandbox/faults")[1] == content
    assert call(fast_engine.url, "DELETE", "/sandbox/faults") == (200, b'{"faults": []}')
