"""A worker's /status for people: the document as aligned lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from forebay_schemas.runtime.terminal import printable_document

CHANGES_SHOWN = 20
_NONE = "-"


def status_text(document: Mapping[str, Any]) -> str:
    """Sections with a heading each, in the order of on-call's questions: what stops it, why, for whom.

    The text may contain an engine's own words, so all of it is made printable.
    """
    document = printable_document(document)
    return "\n\n".join(
        section
        for section in (
            _overview(document),
            _tiers(document["tiers"]),
            _estimates(document["tiers"]),
            _sharing(document["sharing"]),
            _tier_times(document.get("tier_times")),
            _signals(document["signals"]),
            _model(document["pacing"]["model"]) if _knows_tokens(document) else "",
            _changes(document["pacing"]),
            _overload(document["overload"]),
            _looked_for(document["intakes"]),
            _troubles(document["intakes"]),
        )
        if section
    )


def _knows_tokens(document: Mapping[str, Any]) -> bool:
    """False for a handler that reports no tokens, without an engine's counters: all token figures are guesses then."""
    is_metered: bool = document["pacing"]["model"]["learns_from"] == "engine_counters"
    is_published = any(of["estimates"]["output_tokens"] is not None for of in document["tiers"].values())
    return is_metered or is_published or document.get("backend") != "handler"


def _overview(document: Mapping[str, Any]) -> str:
    pacing, breaker, clock = document["pacing"], document["breaker"], document["clock"]
    target = pacing["target"]
    aim = _NONE
    if target is not None and (target["signal"] != "token_seconds" or _knows_tokens(document)):
        stretch = f" (stretched {target['stretch']:g} times)" if target.get("stretch", 1) > 1 else ""
        aim = f"{target['signal']} {target['value']:g}{stretch}"
    broken = "" if breaker["error"] is None else f": {breaker['error']}"
    skew = clock.get("skew_ms")
    rows = [
        ("worker", f"{document['worker']}, pool {document['pool']}, {document['state']}"),
        ("limited by", _limitation(document["limited_by"])),
        *_held(document.get("event_loop")),
        ("in flight", _in_flight(document)),
        ("policy", f"{pacing['policy']}, target {aim}"),
        ("breaker", f"{breaker['state']}, opened {breaker['opened']} times{broken}"),
        *([("what to do", breaker["fix"])] if breaker.get("fix") else []),
        ("undelivered", str(document["undelivered_records"])),
        ("clock skew", _NONE if skew is None else f"{skew / 1000:.3f} s"),
    ]
    return _aligned(rows)


def _held(loop: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Empty while the worker's event loop turns."""
    if loop is None or not loop["held_seconds"]:
        return []
    whose = "" if loop["request_id"] is None else f" by request {loop['request_id']}"
    age = f"what is shown here is {_seconds(loop['document_age_seconds'])} old"
    return [("event loop", f"held for {_seconds(loop['held_seconds'])}{whose}: nothing starts or ends; {age}")]


def _in_flight(document: Mapping[str, Any]) -> str:
    in_flight, share, limit = (document[f"{name}_requests"] for name in ("in_flight", "share", "limit"))
    memory = f"; {_mebi(document['in_flight_bytes'])} of {_mebi(document['in_flight_bytes_max'])}"
    others = len(document["sharing"]["workers"]) - 1
    if others < 1:
        return f"{in_flight} of {share}{memory}"
    return f"{in_flight} of {share}, this worker's share of the backend's {limit}{memory}"


def _sharing(sharing: Mapping[str, Any]) -> str:
    """Empty while the worker is alone."""
    if len(sharing["workers"]) < 2:
        return ""
    head = ("worker", "share", "in flight", "high", "mid", "low", "finds a limit of", "")
    rows = [
        (
            of["worker"],
            str(of["share_requests"]),
            str(of["in_flight_requests"]),
            *(str(wanted) for wanted in of["wanted"].values()),
            f"{of['limit_requests']:g}",
            "draining" if of["draining"] else "",
        )
        for of in sharing["workers"]
    ]
    return _titled("workers that share the backend, and what they want", [head, *rows])


def _tier_times(times: Mapping[str, Any] | None) -> str:
    """Empty while the pool's workers agree."""
    rows = [] if times is None else [(of["worker"], of["difference"]) for of in times["differing"]]
    return _titled("workers with other deadlines or waits, this one's first", rows)


def _tiers(tiers: Mapping[str, Mapping[str, Any]]) -> str:
    head = ("tier", "waiting", "oldest", "work", "wait", "running", "missed", "doomed", "shed", "limited by")
    rows = [
        (
            tier,
            str(of["waiting"]),
            _seconds(of["oldest_seconds"]),
            _seconds(of["work_seconds"]),
            _seconds(of["estimated_wait_seconds"]),
            str(of["running"]),
            str(of["deadline_missed"]),
            str(of["doomed"]),
            str(of["shed"]),
            _limitation(of["limited_by"]),
        )
        for tier, of in tiers.items()
    ]
    return _aligned([head, *rows])


def _estimates(tiers: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{tier} {what.replace('_', ' ')}",
            f"{of['actual_over_predicted']:.2f} of the prediction",
            f"9 of 10 within {of['error_p90']:g}",
            f"last {of['answers']} answers",
        )
        for tier, all_of in tiers.items()
        for what, of in all_of["estimates"].items()
        if of is not None
    ]
    return _titled("estimates against what came true", rows)


def _signals(signals: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, of in signals.items():
        values = ", ".join(f"{field} {value:g}" for field, value in of["values"].items() if value is not None)
        if of["state"] == "ok":
            parts = (values, of["error"])
        else:
            parts = (of["error"], f"{_seconds(of['age_seconds'])} ago it was {values}" if values else None)
        said = "; ".join(part for part in parts if part)
        rows.append((name, of["state"], of["source"] or _NONE, _seconds(of["age_seconds"]), said or _NONE))
    return _titled("signals", rows)


def _model(model: Mapping[str, Any]) -> str:
    rows = [
        ("a step", f"{_milli(model['step_seconds'])} + {_milli(model['sequence_seconds'])} a sequence"),
        ("a prompt token", _milli(model["prompt_token_seconds"])),
        ("an output token, lately", _milli(model["token_seconds"])),
        ("knee", f"{model['knee_requests']:g} requests"),
        ("prefill backlog", _seconds(model["prefill_backlog_seconds"])),
        ("KV cache", _NONE if model["kv_tokens"] is None else f"{model['kv_tokens']} tokens"),
    ]
    return _titled(f"the backend, learnt from {model['learns_from'].replace('_', ' ')}", rows)


def _changes(pacing: Mapping[str, Any]) -> str:
    rows = [
        (_clock_time(change["at_ms"]), f"{change['before']} -> {change['after']}", change["cause"])
        for change in pacing["changes"][-CHANGES_SHOWN:]
    ]
    return _titled(f"limit changes, the last of {pacing['changes_total']}", rows)


def _overload(overload: Mapping[str, Any]) -> str:
    rows = [
        (_clock_time(step["at_ms"]), f"{step['before']} -> {step['after']}", step["cause"])
        for step in overload["steps"]
    ]
    sheds = f", sheds late {' and '.join(overload['sheds'])} requests" if overload["sheds"] else ""
    return "\n".join([f"overload: {overload['level']}{sheds}", *_indented(rows)])


def _looked_for(intakes: Mapping[str, Mapping[str, Any]]) -> str:
    return _titled(
        "wait for a scan of the results for their outcomes",
        [(partition,) for of in intakes.values() for partition in of["looked_for"]],
    )


def _troubles(intakes: Mapping[str, Mapping[str, Any]]) -> str:
    return _titled("troubles", [(trouble,) for of in intakes.values() for trouble in of["troubles"]])


def _limitation(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return _NONE
    signal, value, threshold = found["signal"], found["value"], found["threshold"]
    match signal:
        case "draining":
            return "draining: nothing more is started"
        case "breaker" if value < 0:
            return f"breaker: open, next probe in {_seconds(-value)}"
        case "breaker":
            return "breaker: open, a probe is on its way"
        case "coordination":
            return f"coordination: this worker has not received its own records through Kafka for {_seconds(value)}"
        case "memory":
            return f"memory: requests in flight take {_mebi(value)}, of {_mebi(threshold)}"
        case "suspect":
            return f"suspect: a request that ran at two crashes runs alone, or is to ({value:g} others still run)"
        case "suspension":
            return f"suspension: this worker stood still, goes on in {_seconds(-value)}"
    return f"{signal} ({value:g}, threshold {threshold:g})"


def _seconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds:.2f} s"


def _mebi(size_bytes: float) -> str:
    return f"{round(size_bytes / 1024 / 1024, 1):g} MiB"


def _milli(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1000:.4g} ms"


def _clock_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%H:%M:%S")


def _titled(title: str, rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([title, *_indented(rows)]) if rows else ""


def _indented(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    return (f"  {line}" for line in _aligned(rows).splitlines())


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, except the last."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
