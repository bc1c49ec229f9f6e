"""What commands cost before they do anything: CPU time of whole processes, beside an interpreter that does nothing.

Runs child processes, one at a time, in rounds.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

ROUNDS = 5

_HELP = "from forebay_schemas.runtime.entry import forebay; forebay()"
_WORKER_MAIN = "from forebay_schemas.runtime.entry import import_for_command as of; cli = of('forebay_worker.cli')"
_WORKER_RUN = f"{_WORKER_MAIN}; of(cli.MODULES['run'])"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCost:
    """CPU seconds, user and system, of each process. ``worker_main``: `forebay-worker run` until its main begins;
    ``worker_run``: until all that `run` uses is imported."""

    empty: list[float]
    producer_help: list[float]
    worker_main: list[float]
    worker_run: list[float]

    def ratio(self, seconds: Sequence[float]) -> float:
        """So many times the empty interpreter."""
        return median(seconds) / median(self.empty)


def measure_imports(*, say: Callable[[str], None]) -> ImportCost:
    """Raises ``CalledProcessError`` when a command cannot start."""
    programs = {"empty": ("pass",), "producer_help": (_HELP, "--help"), "worker_main": (_WORKER_MAIN,)}
    programs["worker_run"] = (_WORKER_RUN,)
    for words in programs.values():
        _cpu_seconds(words)  # compiles what was not compiled yet
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, words in programs.items():
            found[name].append(_cpu_seconds(words))
    cost = ImportCost(**found)
    say(
        f"imports: CPU seconds, forebay --help {median(cost.producer_help):.3f}, forebay-worker until its main "
        f"{median(cost.worker_main):.3f}, an empty interpreter {median(cost.empty):.3f}"
    )
    return cost


def _cpu_seconds(words: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
