"""Checks that no Python file of the workspace is longer than 400 lines. Reads the files; prints those that are.

python tools/lengths.py           fails for a file that is longer, unless LONGER_STILL allows it that many lines
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LINES_MAX: Final = 400
FOLDERS: Final = ("schemas/src", "producer/src", "worker/src", "sandbox/src", "helm", "tests", "benchmarks", "tools")

LONGER_STILL: Final[dict[str, int]] = {
    "benchmarks/pacing/virtual.py": 423,
    "tests/chaos/test_chaos_ledger.py": 430,
    "tests/integration/test_sandbox_kafka.py": 409,
    "tests/simulated/ports.py": 420,
    "tests/simulation/bugs.py": 438,
    "tests/simulation/consumer.py": 484,
    "tests/simulation/history.py": 491,
    "tests/simulation/oracle.py": 424,
    "tests/simulation/process.py": 423,
    "tests/unit/producer/planning/test_plan.py": 490,
    "tests/unit/worker/calibrate/test_command.py": 421,
    "tests/unit/worker/coordination/test_follower.py": 572,
    "tests/unit/worker/dispatch/test_dispatcher.py": 1014,
    "tests/unit/worker/dispatch/test_failure_policy.py": 526,
    "tests/unit/worker/execution/test_http_strange_answers.py": 514,
    "tests/unit/worker/intake/test_intake.py": 835,
    "tests/unit/worker/intake/test_partitions.py": 478,
    "tests/unit/worker/ops/test_status.py": 481,
    "tests/unit/worker/outcome/test_reporter.py": 610,
    "tests/unit/worker/pacing/policies/test_slo_aimd.py": 414,
    "tests/unit/worker/pacing/slots/test_sharing.py": 507,
    "tests/unit/worker/pacing/test_gate.py": 663,
    "tests/unit/worker/partition/test_assignment.py": 796,
    "tests/unit/worker/telemetry/test_spans.py": 436,
    "worker/src/forebay_worker/dispatch/dispatcher.py": 403,
    "worker/src/forebay_worker/intake/intake.py": 457,
    "worker/src/forebay_worker/intake/partitions.py": 455,
    "worker/src/forebay_worker/pacing/gate.py": 459,
    "worker/src/forebay_worker/partition/assignment.py": 427,
}
"""Files that are still longer, and the lines they have. Numbers only go down; no file is added."""


def too_long(root: Path) -> Iterator[str]:
    """A sentence for each file that has more lines than it may."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LONGER_STILL.get(name, LINES_MAX):
                yield f"{name} has {lines} lines; split it by subject, so that no file has more than {LINES_MAX}"


def main() -> int:
    """Prints what is too long; returns the exit code."""
    found = [*too_long(Path(__file__).parents[1])]
    sys.stderr.writelines(f"{sentence}\n" for sentence in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
