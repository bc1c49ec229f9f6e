"""The result of `forebay-worker calibrate`, as read by `forebay plan`. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.errors import UsageError

VERSION: Final = 1

State = Literal["complete", "partial", "stopped", "interrupted"]
"""complete: more concurrency gains nothing, or exceeds what was allowed; partial: the time was up; stopped: the backend
failed; interrupted: Ctrl-C."""

StepState = Literal["stable", "unstable", "saturated", "sick"]
"""unstable: the figures kept moving; saturated: the engine queued requests itself; sick: aborted."""


class CalibrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """One load step with a constant ``concurrency`` of requests in flight. Times are seconds, of successful requests.
    Percentiles are None with too few of them (fewer than 20 for P95, than 100 for P99), and so are values that the
    backend does not report. ``ttft``: time to the first token; ``tpot``: time of each further token. ``service_cv``:
    standard deviation over mean."""

    concurrency: int
    state: StepState
    seconds: float
    requests: int
    errors: int
    requests_per_second: float
    service_seconds: float
    service_cv: float
    service_p50_seconds: float
    service_p95_seconds: float | None
    service_p99_seconds: float | None
    output_tokens_per_second: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    tpot_seconds: float | None
    tpot_p95_seconds: float | None
    engine_running: float | None
    engine_waiting: float | None
    kv_used_share: float | None
    preemptions: float | None
    gpu_utilisation: float | None
    gpu_memory_share: float | None
    notes: tuple[str, ...] = ()


class CalibrationFit(msgspec.Struct, frozen=True, kw_only=True):
    """A request among ``n`` takes ``fixed_seconds + n * request_seconds``. ``error_ratio``: the largest relative error
    at a step. ``knee_requests``: where the fixed part takes a fifth of the backend's time."""

    fixed_seconds: float
    request_seconds: float
    error_ratio: float
    knee_requests: float


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What to set. ``stable_``: the step with the most throughput that was stable; ``limit_requests``: with so many in
    flight the backend does 80 % of that, and ``requests_per_second``, ``service_seconds``, ``service_cv`` and
    ``tpot_seconds`` are what to expect there. Both rates are what is in flight over ``service_seconds``, where a step's
    own ``requests_per_second`` counts what ended while it was measured. ``queue_`` are the requests that may wait, for
    so many seconds, in high and mid."""

    stable_concurrency: int
    stable_requests_per_second: float
    limit_requests: int
    limit_min: int
    limit_start: int
    limit_max: int
    requests_per_second: float
    service_seconds: float
    service_cv: float
    tpot_seconds: float | None
    tpot_target_seconds: float | None
    prefill_seconds_max: float | None
    queue_high_requests: int
    queue_mid_requests: int
    queue_high_seconds: float = 3.0
    queue_mid_seconds: float = 18.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A whole calibration. ``backend``: its URL without a password, or the handler's name. ``fit`` and ``recommended``
    are None when too little was measured."""

    version: int
    state: State
    stopped_by: str | None
    backend: str
    model: str | None
    engine: str | None
    load: str
    seconds: float
    steps: tuple[CalibrationStep, ...]
    fit: CalibrationFit | None
    recommended: Recommendation | None
    notes: tuple[str, ...] = ()


def read_calibration(text: bytes, *, field: str) -> Calibration:
    """Reads the output of `forebay-worker calibrate --output json`. Raises ``UsageError`` naming ``field``."""
    fix = "give a file that forebay-worker calibrate --output json has written"
    try:
        calibration = msgspec.json.decode(text, type=Calibration)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(field, f"is no calibration ({shown(str(error))})", fix=fix) from None
    if calibration.version != VERSION:
        raise UsageError(field, f"has version {calibration.version}, and this program reads {VERSION}", fix=fix)
    return calibration
