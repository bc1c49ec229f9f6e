"""Iterator over the outcomes of many requests, and where to begin reading. Talks to the brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from typing import Final

from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.outcome_watch import CLOCK_MARGIN_MS
from forebay_producer.client.results_reader import REMEMBERED_IDS_MAX, FirstOutcomes, ResultsReader
from forebay_producer.client.sender import Submitted
from forebay_producer.errors import SENT_BEFORE_HINT, OutcomeTimeoutError, no_request_id
from forebay_schemas.clock import Clock
from forebay_schemas.contract.envelope_problems import is_request_id
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.connection import KafkaConnection

_READ_SECONDS: Final = 0.2


def follow(
    connection: KafkaConnection,
    *,
    pool: Pool,
    request_ids: Set[str] | None,
    since_ms: int,
    timeout_seconds: float,
    metrics: ProducerMetrics,
    clock: Clock,
) -> Iterator[Result]:
    """Yields the first outcome of each request from ``since_ms`` on. ``request_ids`` None: of the whole pool.

    Raises ``OutcomeTimeoutError`` when an outcome did not arrive in time, and what `ResultsReader` raises.
    """
    give_up_at = clock.monotonic() + timeout_seconds
    missing = None if request_ids is None else set(request_ids)
    if missing is not None and not missing:
        return
    # Other results are skipped by their key, without decoding.
    keys = None if missing is None else {one.encode(errors="surrogatepass") for one in missing}
    firsts = FirstOutcomes(ids_max=REMEMBERED_IDS_MAX)
    with (
        metrics.awaiting(pool.name),
        ResultsReader(
            connection, pool=pool, since_ms=since_ms, clock=clock, open_seconds=max(timeout_seconds, _READ_SECONDS)
        ) as reader,
    ):
        while (left_seconds := give_up_at - clock.monotonic()) > 0:
            found = reader.read(
                timeout_seconds=min(left_seconds, _READ_SECONDS), wanted=None if keys is None else keys.__contains__
            )
            for result, _ in found:
                if missing is None:
                    if not firsts.is_first(result.request_id, result.replay_count):
                        continue
                elif result.request_id in missing and result.replay_count == 0:
                    missing.remove(result.request_id)
                else:
                    continue
                metrics.outcome(pool.name, result.status)
                yield result
                if missing is not None and not missing:
                    return
    if missing:
        metrics.timed_out(pool.name)
        raise no_outcome(sorted(missing), timeout_seconds)


def search_start_ms(
    requests: Collection[Submitted | str] | None,
    *,
    since_ms: int | None,
    own_submit_ms: Callable[[str], int | None],
    first_submit_ms: int | None,
) -> int:
    """Time at which to begin reading the results topic: epoch milliseconds on the brokers' clock.

    ``since_ms`` if given, else a time at or before the earliest submit of the requests. ``own_submit_ms`` looks up the
    submit time of an own request by id. ``first_submit_ms``, the producer's first submit, is used for requests without
    a known time and for all requests (``requests`` None).

    Raises ``UsageError`` when no time is known.
    """
    if since_ms is not None:
        return since_ms
    begins = [] if requests is None else [_submit_ms(one, own_submit_ms) for one in requests]
    known = [one for one in begins if one is not None]
    if known and len(known) == len(begins):
        return min(known)
    if first_submit_ms is None:
        raise UsageError(
            "since_ms",
            "is missing, and this producer has submitted nothing",
            fix="give a time before the request was submitted, in epoch milliseconds; 0 = search the whole topic",
        )
    return min([first_submit_ms, *known])


def _submit_ms(request: Submitted | str, own_submit_ms: Callable[[str], int | None]) -> int | None:
    if isinstance(request, str):
        return own_submit_ms(request)
    return max(0, request.enqueued_at - CLOCK_MARGIN_MS)


def no_outcome(missing: list[str], timeout_seconds: float) -> OutcomeTimeoutError:
    """The error for requests without an outcome; ``missing`` is not empty."""
    named = missing[0] if len(missing) == 1 else f"{len(missing):,} requests, {missing[0]} among them,"
    return OutcomeTimeoutError(
        f"no outcome of {named} within {timeout_seconds:g} s; it may still come. See: forebay backlog. "
        f"{SENT_BEFORE_HINT} {missing[0]}",
        missing=missing,
    )


def id_of(request: object) -> str:
    """The id of what `submit` returned, or the id itself. Raises ``UsageError``."""
    request_id = request.request_id if isinstance(request, Submitted) else request
    if not isinstance(request_id, str) or not is_request_id(request_id):
        raise no_request_id(request)
    return request_id
