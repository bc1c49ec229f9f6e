"""Charges for failures, by histories that read like the specification."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.verdict import reason_of_status
from forebay_worker.dispatch.blame import ADVICE, Blame, Cause, blame_of, trouble_of
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.failure_policy import (
    FAILURES_AMONG_ANSWERS_MAX,
    HELD_SECONDS_MAX,
    SUSPECTS_MAX,
    FailurePolicy,
    Verdicts,
)
from forebay_worker.request.work import Failure, FailureScope, Retry, Work
from simulated.failures import DEADLINE_SECONDS, STATE_OF_THE_BACKEND, failure
from simulated.works import make_work


@pytest.mark.parametrize(
    ("status", "error", "blame"),
    [
        (300, "", Blame.SHARED),
        (302, "", Blame.SHARED),
        (308, "", Blame.SHARED),
        (400, "", Blame.REQUEST),
        (401, "", Blame.SHARED),
        (402, "", Blame.REQUEST),
        (403, "", Blame.SHARED),
        (404, '{"detail": "Not Found"}', Blame.SHARED),
        (404, "<html>404 Not Found</html>", Blame.SHARED),
        (404, "The model `qwen3` does not exist.", Blame.REQUEST),
        (404, '{"error": {"code": "Model_not_found"}}', Blame.REQUEST),
        (405, "", Blame.REQUEST),
        (408, "", Blame.REQUEST),
        (409, "", Blame.REQUEST),
        (413, "", Blame.REQUEST),
        (415, "", Blame.REQUEST),
        (422, "", Blame.REQUEST),
        (425, "", Blame.REQUEST),
        (429, "", Blame.BACKEND),
        (500, "", Blame.SHARED),
        (501, "", Blame.SHARED),
        (502, "", Blame.BACKEND),
        (503, "", Blame.BACKEND),
        (504, "", Blame.SHARED),
        (507, "", Blame.SHARED),
        (529, "", Blame.BACKEND),
        (None, "", Blame.BACKEND),
    ],
)
def test_whose_fault_each_status_may_be(status: int | None, error: str, blame: Blame) -> None:
    assert blame_of(failure(status, error=error)) is blame


@pytest.mark.parametrize(
    "reason", [Reason.HANDLER_FAILED, Reason.BACKEND_TIMEOUT, Reason.BACKEND_BAD_RESPONSE, Reason.UNKNOWN_BIZ_TYPE]
)
def test_a_failure_without_a_status_is_the_requests_own(reason: Reason) -> None:
    assert blame_of(Failure(reason=reason, error="no")) is Blame.REQUEST


@pytest.mark.parametrize(
    ("status", "retryable", "by_hand", "blame"),
    [
        (500, False, True, Blame.REQUEST),
        (500, True, True, Blame.SHARED),
        (501, False, False, Blame.SHARED),
        (401, False, True, Blame.SHARED),
        (503, False, True, Blame.BACKEND),
    ],
)
def test_a_5xx_that_somebody_called_final_by_hand_is_the_requests_own(
    status: int, retryable: bool, by_hand: bool, blame: Blame
) -> None:
    one = Failure(
        reason=reason_of_status(status),
        error="no",
        http_status=status,
        scope=FailureScope.BACKEND if status in STATE_OF_THE_BACKEND else FailureScope.REQUEST,
        retry=Retry.ALLOWED if retryable else Retry.FORBIDDEN,
    )
    assert blame_of(one, retries_by_hand=by_hand) is blame


@pytest.mark.parametrize(
    ("status", "cause", "words"),
    [
        (None, Cause.UNAVAILABLE, "no connection: connection refused"),
        (503, Cause.UNAVAILABLE, "HTTP 503 (backend_unavailable)"),
        (401, Cause.CREDENTIALS, "HTTP 401 (backend_rejected)"),
        (403, Cause.CREDENTIALS, "HTTP 403 (backend_rejected)"),
        (302, Cause.REDIRECT, "HTTP 302 (backend_bad_response)"),
        (404, Cause.NOT_FOUND, "HTTP 404 (backend_rejected)"),
        (500, Cause.ERROR, "HTTP 500 (backend_error)"),
        (504, Cause.ERROR, "HTTP 504 (backend_timeout)"),
    ],
)
def test_what_is_told_of_it_has_no_word_of_the_answer(status: int | None, cause: Cause, words: str) -> None:
    trouble = trouble_of(failure(status, error="MY-PRIVATE-PROMPT"))
    assert (trouble.cause, trouble.words) == (cause, words)
    assert trouble.advice == ADVICE[cause]


def test_an_answer_that_broke_off_is_told_of_by_its_reason_alone() -> None:
    one = Failure(reason=Reason.BACKEND_BAD_RESPONSE, error="gave up: MY-PRIVATE-PROMPT", scope=FailureScope.BACKEND)
    assert trouble_of(one).words == "backend_bad_response"


# Histories. Each word is an event; requests are named by their tenant's letter and a number.
#
#   a1:500    a1 starts and fails so, or has started before and fails now; a probe waits until it may start
#   a1:ok     the same, answered        a1:400  refused for its own sake      a1:gone  its connection is refused
#   a1>       a1 starts and runs on
#   a1?       a1 waits in its lane
#   1s        a second passes


@dataclass
class BackendHistory:
    """Plays one backend. ``back``, ``charged``: names, in order."""

    policy: FailurePolicy = field(default_factory=FailurePolicy)
    now: float = 1_000.0
    back: list[str] = field(default_factory=list)
    charged: list[str] = field(default_factory=list)
    works: dict[str, Work] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)

    def play(self, script: str) -> BackendHistory:
        for event in script.split():
            self.now += 0.001
            if event.endswith("s") and event[0].isdigit():
                self.passes(float(event[:-1]))
            elif event.endswith("?"):
                self.work(event[:-1])
                self.waiting.add(event[:-1])
            elif event.endswith(">"):
                self.starts(event[:-1])
            else:
                self.ends(*event.split(":"))
        return self

    def work(self, name: str) -> Work:
        if name not in self.works:
            self.works[name] = make_work(request_id=name, tenant=name[0], offset=len(self.works))
        return self.works[name]

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.02)
            self.judge(self.policy.step(self.now, waiting=bool(self.waiting), running=bool(self.running)))

    def starts(self, name: str) -> None:
        began = self.now
        while not self.policy.breaker.admits(self.now):
            self.passes(0.02)
            assert self.now - began < 60, "it never probes"
        self.policy.breaker.started(self.now)
        self.work(name).started = self.now
        self.running.add(name)
        self.waiting.discard(name)

    def ends(self, name: str, how: str) -> None:
        if name not in self.running:
            self.starts(name)
        self.now += 0.001
        self.running.discard(name)
        work = self.work(name)
        if how == "ok":
            self.judge(self.policy.answered(self.now, started=work.started))
        elif how == "400":
            self.judge(self.policy.rejected(self.now, started=work.started))
        else:
            self.judge(
                self.policy.failed(
                    self.now,
                    work,
                    failure(None if how == "gone" else int(how)),
                    in_flight=len(self.running),
                    seconds_left=DEADLINE_SECONDS,
                    others_wait=lambda kind: any(name[0] != kind[1] for name in self.waiting | self.running),
                )
            )

    def judge(self, verdicts: Verdicts) -> None:
        for verdict in verdicts:
            (self.charged if verdict.charged else self.back).append(verdict.work.request_id or "")

    @property
    def state(self) -> str:
        return self.policy.breaker.state.value

    @property
    def told(self) -> str | None:
        return None if self.policy.trouble is None else self.policy.trouble.cause.value


@pytest.mark.parametrize(
    ("script", "charged", "back", "told"),
    [
        # One or two wait for evidence.
        ("a1:500", "", "", None),
        ("a1:500 a2:500", "", "", None),
        ("a1:500 a1:500 a1:500", "", "", None),
        # Three different ones with no answer between are the backend's state, whatever the status.
        ("a1:500 a2:500 a3:500", "", "a1 a2 a3", "error"),
        ("a1:504 a2:500 a3:501", "", "a1 a2 a3", "error"),
        ("a1:401 a2:401 a3:401", "", "a1 a2 a3", "credentials"),
        ("a1:403 a2:401 a3:403", "", "a1 a2 a3", "credentials"),
        ("a1:302 a2:302 a3:302", "", "a1 a2 a3", "redirect"),
        ("a1:404 a2:404 a3:404", "", "a1 a2 a3", "not_found"),
        ("a1:500 a2:500 a3:401", "", "a1 a2 a3", "credentials"),
        # An answer to another charges those before it.
        ("a1:500 a2:ok", "a1", "", None),
        ("a1:500 a2:500 a3:ok", "a1 a2", "", None),
        ("a1:401 a2:ok", "a1", "", None),
        ("a3> a1:500 a3:ok", "a1", "", None),
        ("a1:500 a2:500 a3:ok a4:500", "a1 a2", "", None),
        # What was let in before a refusal goes on being answered: that says nothing of the refusal.
        ("a3> a1:401 a3:ok", "", "", None),
        ("a8> a9> a1:401 a2:401 a8:ok a3:401 a9:ok", "", "a1 a2 a3", "credentials"),
        ("a8> a1:404 a2:302 a3:403 a8:ok a4:403", "", "a1 a2 a3 a4", "credentials"),
        # A bad request is refused by an engine whose core is dead, too.
        ("a1:500 a2:400 a3:500 a4:400 a5:500", "", "a1 a3 a5", "error"),
        ("a1:500 a2:500 a3:500 a4:400 a5:500", "", "a1 a2 a3 a5", "error"),
        # But it shows that there are connections again.
        ("a1> a2:gone a1:400", "", "a2", None),
        # Of one tenant alone while others wait or run: the others tell.
        ("b1? a1:500 a2:500 a3:500", "", "", None),
        ("b1> a1:500 a2:500 a3:500", "", "", None),
        ("b1? a1:500 a2:500 a3:500 b1:500", "", "a1 a2 a3 b1", "error"),
        ("b1? a1:500 a2:500 a3:500 b1:ok", "a1 a2 a3", "", None),
        ("b1> a1:500 a2:500 a3:500 b1:ok", "a1 a2 a3", "", None),
        ("b1? a1:500 a2:500 b1:500", "", "a1 a2 b1", "error"),
        # While it is open, whatever fails goes back, and the first answer closes it.
        ("a4> a1:500 a2:500 a3:500 a4:500", "", "a1 a2 a3 a4", "error"),
        ("a1:500 a2:500 a3:500 a1:500 a2:500 a3:500 a1:500", "", "a1 a2 a3 a1 a2 a3 a1", "error"),
        ("a1:500 a2:500 a3:500 a4:ok", "", "a1 a2 a3", None),
        ("a1:500 a2:500 a3:500 a4:ok a1:ok a2:ok", "", "a1 a2 a3", None),
        # One that failed its probe is charged when it fails again after an answer; others wait for the next one.
        ("a1:500 a2:500 a3:500 a1:500 a4:ok a1:500 a2:500", "a1", "a1 a2 a3 a1", None),
        ("a1:500 a2:500 a3:500 a1:500 a4:ok a2:500 a5:ok", "a2", "a1 a2 a3 a1", None),
        # An engine that goes away for good, and comes back by way of errors: no request is charged on the way.
        ("a1:500 a2:500 a3:gone a4:gone", "", "a1 a2 a3 a4", "unavailable"),
        ("a1:gone a2:503 a3:500 a4:500 a5:500 a6:ok", "", "a1 a2 a3 a4 a5", None),
        ("a1:500 a2:500 a3:500 a4:gone a5:401", "", "a1 a2 a3 a4 a5", "credentials"),
        # Alone, it runs again three times: after 0.5, 1 and 2 s.
        ("a1:500 0.4s", "", "", None),
        ("a1:500 0.5s a1:500 0.9s", "", "a1", None),
        ("a1:500 0.5s a1:500 1s a1:500 2s", "", "a1 a1 a1", None),
        ("a1:500 0.5s a1:500 1s a1:500 2s a1:500", "a1", "a1 a1 a1", None),
        ("a1:401 0.5s a1:401 1s a1:401 2s a1:401", "a1", "a1 a1 a1", None),
        ("a1:500 0.5s a1:ok", "", "a1", None),
        ("a1:500 0.5s a1:500 a2:ok", "a1", "a1", None),
        # Two that are alone, likewise; a third shows that it is the backend.
        ("a1:500 a2:500 0.5s a1:500 a2:500 1s", "", "a1 a2 a1 a2", None),
        ("a1:500 0.5s a1:500 1s a2:500 a3:500", "", "a1 a1 a2 a3", "error"),
        # While others run it waits for their end, ten seconds at most; a refusal waits for what starts.
        ("b1> a1:500 9.9s", "", "", None),
        ("b1> a1:500 10s", "", "a1", None),
        ("b1> a1:401 0.5s", "", "a1", None),
        ("b1? a1:401 9.9s", "", "", None),
    ],
)
def test_who_is_charged(script: str, charged: str, back: str, told: str | None) -> None:
    history = BackendHistory().play(script)
    assert (" ".join(history.charged), " ".join(history.back), history.told) == (charged, back, told)
    is_open = history.policy.breaker.state is not BreakerState.CLOSED
    assert is_open == (told is not None)


def test_a_request_that_failed_three_times_more_after_answers_is_charged_whatever_else_fails() -> None:
    """Bad requests that fail at once, three at a time, while good ones run long."""
    history = BackendHistory()
    for number in range(FAILURES_AMONG_ANSWERS_MAX):
        history.play(f"g{number}> a1:500 a2:500 h{number}:500 g{number}:ok")
    assert "a1" not in history.charged
    history.play("g9> a1:500 a2:500")
    assert history.charged[-2:] == ["a1", "a2"]
    assert history.policy.breaker.state is BreakerState.CLOSED


def test_a_flood_of_one_kind_stops_at_a_bound_until_another_kind_was_asked() -> None:
    history = BackendHistory().play("b1? " + " ".join(f"a{number}:500" for number in range(SUSPECTS_MAX - 1)))
    assert history.state == "closed"
    history.play(f"a{SUSPECTS_MAX}:500")
    assert history.state == "open"
    assert history.told is None, "it may well serve others"
    assert history.policy.suspect_count == SUSPECTS_MAX
    assert history.policy.breaker.admits(history.now), "and that is asked at once"
    assert history.policy.is_of_the_failed_kind(history.work("a1"))
    assert not history.policy.is_of_the_failed_kind(history.work("b1"))
    history.play("b1:ok")
    assert len(history.charged) == SUSPECTS_MAX
    assert history.state == "closed"


def test_it_is_let_go_when_its_partition_is_or_when_somebody_wants_something_of_it() -> None:
    history = BackendHistory().play("b1> a1:500 a2:500")
    history.work("a1").assignment.claims.close()
    history.play("0.02s")
    assert history.back == ["a1"]
    history.judge(history.policy.release({"a2", "other"}))
    assert history.back == ["a1", "a2"]
    assert history.policy.release({"a2"}) == ()


def test_its_deadline_and_the_backends_own_wish_bound_how_long_it_waits() -> None:
    policy, work = FailurePolicy(), make_work()
    none = {"in_flight": 0, "others_wait": lambda _: False}
    policy.failed(100.0, work, failure(500, retry_after_seconds=20.0), seconds_left=3_600.0, **none)  # type: ignore[arg-type]
    assert not policy.step(119.9, waiting=False, running=False)
    assert len(policy.step(120.0, waiting=False, running=False)) == 1
    policy.failed(200.0, work, failure(500), seconds_left=0.2, **none)  # type: ignore[arg-type]
    assert len(policy.step(200.2, waiting=True, running=True)) == 1
    assert HELD_SECONDS_MAX > 0.2
