"""/status: what limits each tier now, and the document as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.tier_shares import TierShares
from forebay_worker.ops.status import (
    RUNNING_SHOWN,
    breaker_status,
    credentials_refused,
    limitation,
    limitation_of,
    pacing_status,
    running_status,
    shown,
    tiers_status,
)
from forebay_worker.ops.text import status_text
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate, Limitation
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.request.work import Answer, Failure
from forebay_worker.telemetry.stats import Stats
from simulated.ports import ManualClock, MemoryProducer
from simulated.works import POOL, make_assignment, make_work

TARGET_SECONDS = 0.05
LIMIT = 20
MIB = 1024 * 1024
REFUSED = Failure(reason=Reason.BACKEND_UNAVAILABLE, error="connection refused", of_backend=True)


class Desk:
    """A dispatcher with a limit of 20, of which four are for high alone while high is about."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stats = Stats()
        self.reporter = Reporter(
            producer=MemoryProducer(), pool=POOL, worker_id="w", clock=self.clock, stats=self.stats
        )
        self.dispatcher = Dispatcher(
            clock=self.clock,
            gate=Gate(
                policy=SloAimd(
                    limit_min=LIMIT, limit_start=LIMIT, limit_max=LIMIT, token_seconds_target=TARGET_SECONDS
                ),
                prefill_seconds_max=1_000.0,
            ),
            predictor=Predictor(),
            lanes=Lanes(shares=TierShares(minimum={Tier.MID: 0.0, Tier.LOW: 0.0}, reserve=0.2)),
            overload=OverloadLadder(),
            read_signals=lambda _: (None, None),
            reporter=self.reporter,
            stats=self.stats,
            buffer_bytes_max=300_000_000,
            retries_max=0,
        )
        self._offset = 0
        self.sharing: dict[str, Any] = {"workers": []}
        self.differing: list[dict[str, str]] = []

    def accept(self, tier: Tier, count: int) -> None:
        assignment = make_assignment(tier)
        for _ in range(count):
            self._offset += 1
            self.dispatcher.accept([make_work(assignment, offset=self._offset, ttl_ms=3_600_000)])

    def start(self) -> None:
        while self.dispatcher.take() is not None:
            pass

    def answer_all(self, *, after_seconds: float, output_tokens: int = 100) -> None:
        self.clock.advance(after_seconds)
        for work in list(self.dispatcher.running.values()):
            self.dispatcher.answered(work, Answer(body={}, prompt_tokens=10, output_tokens=output_tokens))
        self.reporter.delivery.poll()

    def limits(self) -> dict[Tier, str | None]:
        found = {tier: limitation_of(self.dispatcher, tier, self.clock.monotonic()) for tier in TIERS}
        return {tier: None if each is None else each.signal for tier, each in found.items()}

    def limitation(self) -> Limitation | None:
        return limitation(self.dispatcher, self.clock.monotonic())

    def tiers(self) -> dict[Tier, dict[str, Any]]:
        now, now_ms = self.clock.monotonic(), self.clock.wall_ms()
        return tiers_status(self.dispatcher, stats=self.stats, now=now, now_ms=now_ms)

    def document(self) -> dict[str, Any]:
        """As the worker makes it, read back as a client does."""
        now, now_ms = self.clock.monotonic(), self.clock.wall_ms()
        found = self.limitation()
        document = {
            "worker": "w-1",
            "pool": "test",
            "state": "working",
            "backend": "http",
            "limited_by": shown(found),
            "share_requests": LIMIT,
            "limit_requests": LIMIT,
            "sharing": self.sharing,
            "tier_times": {"ttl_ms": {}, "wait_ms": {}, "differing": self.differing},
            "in_flight_requests": len(self.dispatcher.running),
            "in_flight_bytes": self.dispatcher.slots.memory_bytes,
            "in_flight_bytes_max": 256 * MIB,
            "pacing": pacing_status(self.dispatcher.gate, policy="slo_aimd", now=now),
            "signals": {
                "engine": {
                    "state": "stale",
                    "source": "http://engine/metrics",
                    "age_seconds": 7.5,
                    "error": "HTTP 503",
                    "values": {"running_requests": 3.0, "kv_used_share": None},
                },
                "gpu": {"state": "off", "source": None, "age_seconds": None, "error": None, "values": {}},
            },
            "breaker": breaker_status(self.dispatcher),
            "overload": self.dispatcher.shedder.ladder.status(),
            "undelivered_records": 0,
            "clock": {"skew_ms": 1500},
            "tiers": tiers_status(self.dispatcher, stats=self.stats, now=now, now_ms=now_ms),
            "intakes": {
                "high": {"looked_for": [], "troubles": ["high: no broker"]},
                "mid": {"looked_for": ["forebay.qwen.requests.mid/3"], "troubles": []},
            },
            "running": running_status(self.dispatcher, now=now, now_ms=now_ms),
        }
        read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
        return read


def test_nothing_limits_where_nothing_waits() -> None:
    desk = Desk()
    assert desk.limitation() is None
    assert desk.limits() == {Tier.HIGH: None, Tier.MID: None, Tier.LOW: None}


def test_the_limit_holds_up_whatever_waits() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 25)
    desk.accept(Tier.LOW, 1)
    desk.start()
    assert desk.limitation() == Limitation("limit", LIMIT, LIMIT)
    assert desk.limits() == {Tier.HIGH: "limit", Tier.MID: None, Tier.LOW: "limit"}


def test_lower_tiers_are_held_up_by_higher_ones_and_by_the_reserve() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 1)
    desk.accept(Tier.MID, 30)
    desk.accept(Tier.LOW, 5)
    desk.start()
    assert len(desk.dispatcher.running) == 16
    assert desk.limits() == {Tier.HIGH: None, Tier.MID: "reserve", Tier.LOW: "higher_tiers"}
    assert desk.limitation() == Limitation("reserve", 16, 16)
    assert limitation_of(desk.dispatcher, Tier.LOW, desk.clock.monotonic()) == Limitation("higher_tiers", 15, 0)


def test_lower_tiers_are_held_up_while_tokens_of_high_ones_come_too_late() -> None:
    desk = Desk()
    for requests in (1, 1, 1, 1, 16):
        desk.accept(Tier.HIGH, requests)
        desk.start()
        desk.answer_all(after_seconds=1.25 * requests)
    desk.accept(Tier.HIGH, 15)
    desk.accept(Tier.MID, 1)
    desk.start()
    found = limitation_of(desk.dispatcher, Tier.MID, desk.clock.monotonic())
    assert found is not None
    assert (found.signal, found.threshold) == ("only_high", TARGET_SECONDS)
    assert found.value > TARGET_SECONDS
    assert desk.limitation() == found


def test_lower_tiers_are_not_held_up_for_tokens_that_come_too_late_however_little_runs() -> None:
    desk = Desk()
    for requests in (1, 1, 1, 1, 16):
        desk.accept(Tier.HIGH, requests)
        desk.start()
        desk.answer_all(after_seconds=20.0)
    desk.accept(Tier.HIGH, 10)
    desk.accept(Tier.MID, 5)
    desk.start()
    assert desk.dispatcher.slots.by_tier[Tier.MID] == 5
    assert desk.limits() == {Tier.HIGH: None, Tier.MID: None, Tier.LOW: None}


def test_a_broken_backend_holds_up_every_tier() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 4)
    desk.start()
    for work in list(desk.dispatcher.running.values()):
        desk.dispatcher.failed(work, REFUSED)
    desk.accept(Tier.LOW, 1)
    assert desk.limits() == {Tier.HIGH: "breaker", Tier.MID: None, Tier.LOW: "breaker"}


def test_tiers_say_what_waits_how_long_and_what_was_dropped() -> None:
    desk = Desk()
    for _ in range(2):
        desk.accept(Tier.HIGH, LIMIT)
        desk.start()
        desk.answer_all(after_seconds=2.0)
    desk.accept(Tier.MID, 40)
    desk.start()
    desk.clock.advance(3.0)
    desk.stats.outcomes[Tier.MID, Reason.SHED_OVERLOAD] = 3
    desk.stats.outcomes[Tier.MID, Reason.DEADLINE_UNREACHABLE] = 2
    desk.stats.outcomes[Tier.MID, Reason.DEADLINE_PASSED_RUNNING] = 1
    desk.stats.outcomes[Tier.MID, Reason.DEADLINE_PASSED_WAITING] = 4
    tiers = desk.tiers()
    mid = tiers[Tier.MID]
    assert (mid["waiting"], mid["running"]) == (24, 16)
    assert mid["oldest_seconds"] == pytest.approx(7.0)
    assert mid["estimated_wait_seconds"] == mid["work_seconds"] > 0
    assert tiers[Tier.HIGH]["estimated_wait_seconds"] == 0
    assert tiers[Tier.LOW]["estimated_wait_seconds"] == mid["estimated_wait_seconds"]
    assert (mid["shed"], mid["doomed"], mid["deadline_missed"]) == (3, 2, 5)
    assert tiers[Tier.HIGH]["oldest_seconds"] is None
    high = tiers[Tier.HIGH]["estimates"]
    assert high["output_tokens"]["answers"] == 2 * LIMIT
    assert high["service_seconds"]["answers"] == LIMIT, "the first ones were started before anything was known"


def test_waits_are_unknown_before_anything_was_answered() -> None:
    desk = Desk()
    desk.accept(Tier.MID, 5)
    assert desk.tiers()[Tier.MID]["estimated_wait_seconds"] is None


def test_the_longest_running_are_shown() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 2)
    desk.start()
    desk.clock.advance(2.0)
    desk.accept(Tier.HIGH, 1)
    desk.start()
    rows = running_status(desk.dispatcher, now=desk.clock.monotonic(), now_ms=desk.clock.wall_ms())
    assert [row["running_seconds"] for row in rows] == [2.0, 2.0, 0.0]
    assert len(rows) <= RUNNING_SHOWN


def lines_of(document: Mapping[str, Any]) -> list[str]:
    return status_text(document).splitlines()


def test_the_document_for_people_says_what_limits_and_why() -> None:
    desk = Desk()
    for _ in range(2):
        desk.accept(Tier.HIGH, LIMIT)
        desk.start()
        desk.answer_all(after_seconds=2.0)
    desk.accept(Tier.HIGH, 25)
    desk.start()
    document = desk.document()
    document["pacing"]["changes"] = [{"at_ms": 1_760_000_000_000, "before": 32, "after": 22, "cause": "because"}]
    text = status_text(document)
    lines = lines_of(document)
    assert "limited by   limit (20, threshold 20)" in lines
    assert "in flight    20 of 20; 0.4 MiB of 256 MiB" in lines
    assert "breaker      closed, opened 0 times" in lines
    assert "clock skew   1.500 s" in lines
    assert any(line.split()[:2] == ["high", "5"] and line.endswith("limit (20, threshold 20)") for line in lines)
    assert any(line.split()[:2] == ["low", "0"] and line.endswith("-") for line in lines)
    assert "  engine  stale  http://engine/metrics  7.50 s  HTTP 503; 7.50 s ago it was running_requests 3" in lines
    assert "the backend, learnt from answers" in lines
    assert "32 -> 22  because" in text
    assert "overload: normal" in lines
    assert "  high: no broker" in lines
    assert "  forebay.qwen.requests.mid/3" in lines
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "-"),
        (Limitation("limit", 4, 4), "limit (4, threshold 4)"),
        (Limitation("breaker", -2.9, 0), "breaker: open, next probe in 2.90 s"),
        (Limitation("breaker", 0, 0), "breaker: open, a probe is on its way"),
        (
            Limitation("suspect", 2, 0),
            "suspect: a request that ran at two crashes runs alone, or is to (2 others still run)",
        ),
        (Limitation("memory", 262 * MIB, 256 * MIB), "memory: requests in flight take 262 MiB, of 256 MiB"),
        (Limitation("suspension", -0.5, 0), "suspension: this worker stood still, goes on in 0.50 s"),
        (Limitation("draining", 1, 0), "draining: nothing more is started"),
    ],
)
def test_what_limits_is_said_in_words_where_a_threshold_says_nothing(found: Limitation | None, words: str) -> None:
    document = Desk().document() | {"limited_by": shown(found)}
    assert f"limited by   {words}" in lines_of(document)


@pytest.mark.parametrize(
    ("state", "error", "values", "said"),
    [
        ("ok", None, {"running_requests": 3.0}, "running_requests 3"),
        ("ok", "one device is refused", {"running_requests": 3.0}, "running_requests 3; one device is refused"),
        ("stale", None, {"running_requests": 3.0}, "90.00 s ago it was running_requests 3"),
        ("missing", "HTTP 503", {"running_requests": 3.0}, "HTTP 503; 90.00 s ago it was running_requests 3"),
        ("missing", "HTTP 503", {}, "HTTP 503"),
    ],
)
def test_old_values_of_a_signal_are_not_shown_as_if_they_were_of_now(
    state: str, error: str | None, values: dict[str, float], said: str
) -> None:
    document = Desk().document()
    signal = {"state": state, "source": "m", "age_seconds": 90.0, "error": error, "values": values}
    document["signals"] = {"engine": signal}
    [line] = [line for line in lines_of(document) if line.startswith("  engine  ")]
    assert line.removeprefix(f"  engine  {state}  m  90.00 s  ") == said


def test_a_handler_that_tells_no_tokens_is_shown_without_figures_of_them() -> None:
    document = Desk().document() | {"backend": "handler"}
    assert "token" not in status_text(document)
    assert "policy       slo_aimd, target -" in lines_of(document)
    document["pacing"]["model"]["learns_from"] = "engine_counters"
    assert "an output token, lately" in status_text(document)


def test_a_worker_of_which_nothing_is_known_yet_can_be_shown() -> None:
    text = status_text(Desk().document())
    assert "limited by   -" in text
    assert "estimates" not in text


def test_the_text_names_workers_with_other_deadlines() -> None:
    stage = Desk()
    assert "deadlines" not in status_text(stage.document())
    stage.differing = [{"worker": "w-2", "difference": "FOREBAY_TIER_TTL_MS high 5000 against 60000"}]
    assert "workers with other deadlines or waits, this one's first\n  w-2  FOREBAY_TIER_TTL_MS high" in status_text(
        stage.document()
    )
    of_an_older_worker = stage.document()
    del of_an_older_worker["tier_times"]
    assert "deadlines" not in status_text(of_an_older_worker)


def test_the_text_shows_who_shares_the_backend() -> None:
    stage = Desk()
    assert "share" not in status_text(stage.document())
    stage.sharing = {
        "limit_requests": LIMIT,
        "share_requests": LIMIT,
        "heard_itself_seconds": 0.2,
        "workers": [
            {
                "worker": name,
                "share_requests": 5,
                "in_flight_requests": 4,
                "wanted": {"high": 1, "mid": 0, "low": 33},
                "limit_requests": 10.4,
                "draining": name == "w-2",
            }
            for name in ("w-1", "w-2")
        ],
    }
    text = status_text(stage.document())
    assert f"0 of {LIMIT}, this worker's share of the backend's {LIMIT}" in text
    assert "  w-2     5      4          1     0    33   10.4              draining" in text


def test_what_an_engine_says_does_not_steer_the_terminal() -> None:
    hostile = "HTTP 503: \x1b]0;pwned\x07\x9b2J\nlimited by   -\u202e"
    document = Desk().document()
    document["breaker"]["error"] = hostile
    document["intakes"]["high"]["troubles"] = [hostile]
    document["signals"]["engine"] |= {"state": "missing", "error": hostile, "source": hostile}
    text = status_text(document)
    assert text.count("pwned") == 4
    assert all(line.isprintable() for line in text.split("\n"))
    assert sum(line.startswith("limited by") for line in text.split("\n")) == 1


def fail_all(desk: Desk, failure: Failure) -> None:
    desk.accept(Tier.HIGH, LIMIT)
    desk.start()
    for work in list(desk.dispatcher.running.values()):
        desk.dispatcher.failed(work, failure)


def http_failure(status: int, reason: Reason) -> Failure:
    return Failure(reason=reason, error=f"HTTP {status}: MY-PRIVATE-PROMPT", http_status=status)


def test_a_backend_that_fails_all_is_shown_with_its_cause_and_what_to_do_and_without_its_words() -> None:
    desk = Desk()
    fail_all(desk, http_failure(401, Reason.BACKEND_REJECTED))
    breaker = desk.document()["breaker"]
    assert (breaker["state"], breaker["error"], breaker["cause"]) == (
        "open",
        "HTTP 401 (backend_rejected)",
        "credentials",
    )
    assert "MY-PRIVATE-PROMPT" not in str(desk.document())
    lines = lines_of(desk.document())
    assert "breaker      open, opened 1 times: HTTP 401 (backend_rejected)" in lines
    assert f"what to do   {breaker['fix']}" in lines


@pytest.mark.parametrize(
    ("failure", "is_ready"),
    [
        (http_failure(401, Reason.BACKEND_REJECTED), False),
        (http_failure(403, Reason.BACKEND_REJECTED), False),
        (http_failure(500, Reason.BACKEND_ERROR), True),
        (http_failure(404, Reason.BACKEND_REJECTED), True),
        (http_failure(302, Reason.BACKEND_BAD_RESPONSE), True),
        (REFUSED, True),
    ],
)
def test_only_a_backend_that_lets_nobody_in_makes_the_worker_not_ready(failure: Failure, is_ready: bool) -> None:
    desk = Desk()
    assert credentials_refused(desk.dispatcher) == []
    fail_all(desk, failure)
    problems = credentials_refused(desk.dispatcher)
    assert (problems == []) is is_ready
    if problems:
        assert "FOREBAY_BACKEND_API_KEY" in problems[0]
        assert "MY-PRIVATE-PROMPT" not in problems[0]
    desk.clock.advance(0.5)
    desk.dispatcher.tick()
    desk.start()
    desk.answer_all(after_seconds=0.1)
    assert credentials_refused(desk.dispatcher) == []


def test_a_status_of_an_older_worker_without_a_fix_can_be_shown() -> None:
    document = Desk().document()
    document["breaker"] = {"state": "open", "opened": 2, "error": "connection refused"}
    assert "breaker      open, opened 2 times: connection refused" in lines_of(document)


def test_what_waits_for_a_commit_before_it_starts_is_shown_as_waiting() -> None:
    """It was shown as running, for as long as an open breaker held it up, too."""
    desk = Desk()
    assignment = make_assignment(Tier.MID)
    assignment.claims.is_announced = False
    desk.dispatcher.accept([make_work(assignment, offset=offset, ttl_ms=3_600_000) for offset in range(3)])
    desk.start()
    assert len(desk.dispatcher.named_starts) == 3
    assert [desk.tiers()[Tier.MID][what] for what in ("waiting", "running")] == [3, 0]
    desk.accept(Tier.HIGH, 1)
    desk.start()
    [probe] = desk.dispatcher.running.values()
    desk.dispatcher.failed(probe, REFUSED)
    assignment.claims.is_announced = True
    desk.start()
    assert [desk.tiers()[Tier.MID][what] for what in ("waiting", "running")] == [3, 0]
    assert desk.limits()[Tier.MID] == "breaker"


def test_the_text_says_that_the_event_loop_is_held_and_how_old_the_rest_is() -> None:
    of_loop = {"held_seconds": 12.25, "request_id": "r-7", "holds": 0, "document_age_seconds": 14.0}
    lines = lines_of(Desk().document() | {"event_loop": of_loop})
    held = "held for 12.25 s by request r-7: nothing starts or ends; what is shown here is 14.00 s old"
    assert f"event loop   {held}" in lines
    of_loop["held_seconds"] = 0.0
    assert not [line for line in lines_of(Desk().document() | {"event_loop": of_loop}) if "event loop" in line]


def test_a_handler_that_tells_its_tokens_is_shown_with_them() -> None:
    desk = Desk()
    desk.accept(Tier.MID, 20)
    desk.start()
    desk.answer_all(after_seconds=1)
    assert "an output token, lately" in status_text(desk.document() | {"backend": "handler"})
