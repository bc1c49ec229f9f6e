"""Trusted readings of GPUs: from NVML's process, from Prometheus, and the names of devices."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from forebay_schemas.errors import UsageError
from forebay_worker.signals.gpu_check import check_devices, check_percent, device_names
from forebay_worker.signals.gpu_prometheus import read_query_result
from forebay_worker.signals.readings import GpuReading, SignalError

NOW_MS = 1_735_689_600_000


def device(name: str = "0", **fields: Any) -> dict[str, Any]:
    told = {"utilisation_percent": 50, "sm_percent": None, "memory_used_bytes": 40, "memory_total_bytes": 80}
    return {"name": name, "error": None, **told, **fields}


@pytest.mark.parametrize(
    ("value", "share"),
    [
        (0, 0.0),
        (37, 0.37),
        (100, 1.0),
        (100.4, 1.0),
        (102, None),
        (4294967295, None),
        (9.2e18, None),
        (140737488355328.0, None),
        (-1, None),
        (math.nan, None),
        (math.inf, None),
        (None, None),
        ("50", None),
        (True, None),
    ],
)
def test_a_percentage_is_believed_from_0_to_100(value: object, share: float | None) -> None:
    assert check_percent(value) == share


@pytest.mark.parametrize(
    ("devices", "expected", "problem"),
    [
        pytest.param(
            [device(utilisation_percent=20, sm_percent=10), device("1", utilisation_percent=60, memory_used_bytes=72)],
            GpuReading(at=3.0, utilisation=0.4, sm_utilisation=0.1, memory_used_share=0.9),
            "",
            id="mean-utilisation-fullest-memory",
        ),
        pytest.param(
            [device(utilisation_percent=9_000_000_000_000_000_000)],
            GpuReading(at=3.0, memory_used_share=0.5),
            "GPU 0: utilisation_percent 9000000000000000000 refused",
            id="absurd-utilisation",
        ),
        pytest.param(
            [device(), device("1", utilisation_percent=4294967295)],
            GpuReading(at=3.0, utilisation=0.5, memory_used_share=0.5),
            "GPU 1: utilisation_percent 4294967295 refused",
            id="one-of-two-absurd",
        ),
        pytest.param(
            [device(utilisation_percent=0, sm_percent=40.0)],
            GpuReading(at=3.0, sm_utilisation=0.4, memory_used_share=0.5),
            "GPU 0: utilisation 0 while 40% of the SMs were busy",
            id="zero-for-unsupported",
        ),
        pytest.param(
            [device(utilisation_percent=0, sm_percent=0.0)],
            GpuReading(at=3.0, utilisation=0.0, sm_utilisation=0.0, memory_used_share=0.5),
            "",
            id="honest-zero",
        ),
        pytest.param(
            [device(memory_used_bytes=0, memory_total_bytes=0)],
            GpuReading(at=3.0, utilisation=0.5),
            "GPU 0: memory 0 of 0 bytes refused",
            id="no-memory-at-all",
        ),
        pytest.param(
            [device(memory_used_bytes=2**64 - 1, memory_total_bytes=2**64 - 1)],
            GpuReading(at=3.0, utilisation=0.5),
            f"GPU 0: memory {2**64 - 1} of {2**64 - 1} bytes refused",
            id="memory-not-available",
        ),
        pytest.param(
            [device(memory_used_bytes=81)],
            GpuReading(at=3.0, utilisation=0.5),
            "GPU 0: memory 81 of 80 bytes refused",
            id="more-used-than-there-is",
        ),
        pytest.param(
            [
                device(),
                device(
                    "1", error="GPU is lost", utilisation_percent=None, memory_used_bytes=None, memory_total_bytes=None
                ),
            ],
            GpuReading(at=3.0, utilisation=0.5, memory_used_share=0.5),
            "GPU 1: GPU is lost",
            id="one-of-two-lost",
        ),
        pytest.param(
            [device(utilisation_percent=math.nan, memory_total_bytes=None)], None, "GPU 0: ", id="nothing-left"
        ),
        pytest.param([], None, "the GPUs tell neither utilisation nor memory", id="no-device"),
        pytest.param(None, None, "the GPUs tell neither utilisation nor memory", id="no-list"),
        pytest.param([7], None, "unreadable: 7", id="no-object"),
    ],
)
def test_what_is_absurd_is_refused_field_by_field(devices: object, expected: GpuReading | None, problem: str) -> None:
    checked = check_devices(devices, at=3.0)
    assert checked.reading == expected
    assert "; ".join(checked.problems).startswith(problem)
    assert bool(checked.problems) == bool(problem)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", ()),
        (" , ", ()),
        ("0", ("0",)),
        ("0, 3,0", ("0", "3")),
        ("GPU-8a1f-22,MIG-c7-9", ("GPU-8a1f-22", "MIG-c7-9")),
        ("MIG-GPU-8a1f/1/0", ("MIG-GPU-8a1f/1/0",)),
    ],
)
def test_devices_are_named_by_index_or_uuid(value: str, names: tuple[str, ...]) -> None:
    assert device_names(value) == names


@pytest.mark.parametrize("value", ["gpu0", "0;1", "-1", "GPU-", "all", "0 1", "cuda:0", "GPU-a$(b)"])
def test_another_name_for_a_device_is_refused_with_the_fix(value: str) -> None:
    with pytest.raises(
        UsageError, match=r"FOREBAY_GPU_DEVICES: .* is no GPU's index or UUID; give what `nvidia-smi -L`"
    ):
        device_names(value)


def answer(*samples: tuple[object, object]) -> bytes:
    result = [{"metric": {"gpu": str(index)}, "value": list(sample)} for index, sample in enumerate(samples)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


NOW = NOW_MS / 1000


@pytest.mark.parametrize(
    ("body", "utilisation", "problem"),
    [
        pytest.param(answer((NOW, "87.5")), 0.875, None, id="percent"),
        pytest.param(answer((NOW, "1")), 0.01, None, id="one-is-one-percent"),
        pytest.param(answer((NOW - 59, "40"), (NOW, "60")), 0.5, None, id="mean-of-devices"),
        pytest.param(
            answer((NOW, "40"), (NOW, "9223372036854775792")), 0.4, "'9223372036854775792' is no", id="dcgm-blank"
        ),
        pytest.param(
            answer((NOW, "40"), (NOW - 61, "60")), 0.4, "a sample that is 61 s old is refused", id="one-stale"
        ),
        pytest.param(
            json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [NOW, "12"]}}).encode(),
            0.12,
            None,
            id="scalar",
        ),
    ],
)
def test_a_query_gives_the_utilisation_in_percent(body: bytes, utilisation: float, problem: str | None) -> None:
    reading, refused = read_query_result(body, at=3.0, wall_ms=NOW_MS)
    assert reading == GpuReading(at=3.0, utilisation=utilisation)
    assert refused is None if problem is None else refused is not None and refused.startswith(problem)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (answer(), "FOREBAY_GPU_PROMETHEUS_QUERY: the query's result is empty"),
        (answer((NOW - 3600, "50")), "FOREBAY_GPU_PROMETHEUS_QUERY: a sample that is 3600 s old is refused"),
        (answer((NOW + 3600, "50")), "FOREBAY_GPU_PROMETHEUS_QUERY: a sample that is -3600 s old is refused"),
        (answer(("nan", "50")), "FOREBAY_GPU_PROMETHEUS_QUERY: a sample that is nan s old is refused"),
        (answer((NOW, "NaN")), "FOREBAY_GPU_PROMETHEUS_QUERY: 'NaN' is no percentage and refused"),
        (answer((NOW, "150")), "FOREBAY_GPU_PROMETHEUS_QUERY: '150' is no percentage and refused"),
        (answer((NOW, "x")), "FOREBAY_GPU_PROMETHEUS_QUERY: unreadable sample"),
        (answer((NOW, None)), "FOREBAY_GPU_PROMETHEUS_QUERY: unreadable sample"),
        (b'{"status":"error","error":"parse error"}', "FOREBAY_GPU_PROMETHEUS_QUERY: Prometheus says: parse error"),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
            "FOREBAY_GPU_PROMETHEUS_QUERY: the result is a matrix; let it be an instant vector or a scalar",
        ),
        (b"<html>", "FOREBAY_GPU_PROMETHEUS_URL: the answer is none of Prometheus' query API"),
        (b"[1]", "FOREBAY_GPU_PROMETHEUS_URL: the answer is none of Prometheus' query API"),
        (
            b'{"status":"success","data":null}',
            "FOREBAY_GPU_PROMETHEUS_URL: the answer is none of Prometheus' query API",
        ),
        (b"\xff\xfe", "FOREBAY_GPU_PROMETHEUS_URL: the answer is none of Prometheus' query API"),
    ],
)
def test_a_result_that_cannot_be_used_is_an_error_that_names_the_setting(body: bytes, error: str) -> None:
    with pytest.raises(SignalError) as caught:
        read_query_result(body, at=3.0, wall_ms=NOW_MS)
    assert str(caught.value).startswith(error)
