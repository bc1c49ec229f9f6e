"""The document of /status as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.ops.status import shown
from forebay_worker.ops.text import status_text
from forebay_worker.pacing.limitation import Limitation
from simulated.status import LIMIT, MIB, StatusStage, fail_all, http_failure


def lines_of(document: Mapping[str, Any]) -> list[str]:
    return status_text(document).splitlines()


def test_the_document_for_people_says_what_limits_and_why() -> None:
    stage = StatusStage()
    for _ in range(2):
        stage.fill(Tier.HIGH, LIMIT)
        stage.take_all()
        stage.answer_all(after_seconds=2.0)
    stage.fill(Tier.HIGH, 25)
    stage.take_all()
    document = stage.document()
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
    document = StatusStage().document() | {"limited_by": shown(found)}
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
    document = StatusStage().document()
    signal = {"state": state, "source": "m", "age_seconds": 90.0, "error": error, "values": values}
    document["signals"] = {"engine": signal}
    [line] = [line for line in lines_of(document) if line.startswith("  engine  ")]
    assert line.removeprefix(f"  engine  {state}  m  90.00 s  ") == said


def test_a_handler_that_tells_no_tokens_is_shown_without_figures_of_them() -> None:
    document = StatusStage().document() | {"backend": "handler"}
    assert "token" not in status_text(document)
    assert "policy       slo_aimd, target -" in lines_of(document)
    document["pacing"]["model"]["learns_from"] = "engine_counters"
    assert "an output token, lately" in status_text(document)


def test_a_worker_of_which_nothing_is_known_yet_can_be_shown() -> None:
    text = status_text(StatusStage().document())
    assert "limited by   -" in text
    assert "estimates" not in text


def test_the_text_names_workers_with_other_deadlines() -> None:
    stage = StatusStage()
    assert "deadlines" not in status_text(stage.document())
    stage.differing = [{"worker": "w-2", "difference": "FOREBAY_TIER_TTL_MS high 5000 against 60000"}]
    assert "workers with other deadlines or waits, this one's first\n  w-2  FOREBAY_TIER_TTL_MS high" in status_text(
        stage.document()
    )
    of_an_older_worker = stage.document()
    del of_an_older_worker["tier_times"]
    assert "deadlines" not in status_text(of_an_older_worker)


def test_the_text_shows_who_shares_the_backend() -> None:
    stage = StatusStage()
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
    document = StatusStage().document()
    document["breaker"]["error"] = hostile
    document["intakes"]["high"]["troubles"] = [hostile]
    document["signals"]["engine"] |= {"state": "missing", "error": hostile, "source": hostile}
    text = status_text(document)
    assert text.count("pwned") == 4
    assert all(line.isprintable() for line in text.split("\n"))
    assert sum(line.startswith("limited by") for line in text.split("\n")) == 1


def test_a_backend_that_fails_all_is_shown_with_its_cause_and_what_to_do_and_without_its_words() -> None:
    stage = StatusStage()
    fail_all(stage, http_failure(401, Reason.BACKEND_REJECTED))
    breaker = stage.document()["breaker"]
    assert (breaker["state"], breaker["error"], breaker["cause"]) == (
        "open",
        "HTTP 401 (backend_rejected)",
        "credentials",
    )
    assert "MY-PRIVATE-PROMPT" not in str(stage.document())
    lines = lines_of(stage.document())
    assert "breaker      open, opened 1 times: HTTP 401 (backend_rejected)" in lines
    assert f"what to do   {breaker['fix']}" in lines


def test_a_status_of_an_older_worker_without_a_fix_can_be_shown() -> None:
    document = StatusStage().document()
    document["breaker"] = {"state": "open", "opened": 2, "error": "connection refused"}
    assert "breaker      open, opened 2 times: connection refused" in lines_of(document)


def test_the_text_says_that_the_event_loop_is_held_and_how_old_the_rest_is() -> None:
    of_loop = {"held_seconds": 12.25, "request_id": "r-7", "holds": 0, "document_age_seconds": 14.0}
    lines = lines_of(StatusStage().document() | {"event_loop": of_loop})
    held = "held for 12.25 s by request r-7: nothing starts or ends; what is shown here is 14.00 s old"
    assert f"event loop   {held}" in lines
    of_loop["held_seconds"] = 0.0
    assert not [line for line in lines_of(StatusStage().document() | {"event_loop": of_loop}) if "event loop" in line]


def test_a_handler_that_tells_its_tokens_is_shown_with_them() -> None:
    stage = StatusStage()
    stage.fill(Tier.MID, 20)
    stage.take_all()
    stage.answer_all(after_seconds=1)
    assert "an output token, lately" in status_text(stage.document() | {"backend": "handler"})
