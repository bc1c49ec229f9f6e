"""Replays of dead letters as processes of their own, and what came of them: in the requests, on the audit topic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay_schemas.contract.headers import read_history, record_headers
from forebay_schemas.contract.tiers import Tier
from harness import killed_replay
from harness.dead_letters import command_of, requests, value_of, write_letters
from harness.live_pool import LivePool

SELECTION = ("--reason", "backend_error")

_TESTS = Path(killed_replay.__file__).parents[1]


def write(pool: LivePool, count: int, *, prefix: str = "r") -> list[str]:
    """Writes ``count`` dead letters of the low tier, which takes replays although no worker runs."""
    wanted = [f"{prefix}-{number}" for number in range(count)]
    write_letters(pool, ((one, value_of(one)) for one in wanted), tier=Tier.LOW)
    return wanted


def replays_by_id(pool: LivePool) -> Counter[str]:
    """Number of replays of each request of the low tier."""
    records = requests(pool, Tier.LOW)
    assert {read_history(record_headers(record)).replay_count for record in records} <= {1}
    return Counter((record.key() or b"").decode() for record in records)


def audits(pool: LivePool, action: str = "replay") -> list[dict[str, Any]]:
    """All records of this action on the audit topic."""
    told = [json.loads(record.value() or b"") for record in pool.kafka.read_all(pool.topics.audit)]
    return [one for one in told if one["action"] == action]


def recorded_by_id(pool: LivePool) -> Counter[str]:
    """Number of replays of each request that the audit topic records."""
    return Counter(one["request_id"] for one in audits(pool))


def killed(pool: LivePool, kind: str, number: int, seconds: float = 0.0, *, rate: str = "40/s") -> None:
    """A replay that kills itself at that moment (see `harness.killed_replay`)."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_TESTS),
        "FOREBAY_BOOTSTRAP_SERVERS": pool.kafka.bootstrap_servers,
        "FOREBAY_POOL": pool.name,
    }
    arguments = [kind, str(number), str(seconds), "dead-letters", "replay", *SELECTION, "--yes", "--rate", rate]
    command = [sys.executable, "-m", "harness.killed_replay", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@contextmanager
def running(pool: LivePool, *arguments: str, bootstrap_servers: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A replay of all of them that reports as JSON."""
    command = command_of(pool, bootstrap_servers=bootstrap_servers)
    with command.running("dead-letters", "replay", *SELECTION, "--yes", "--output", "json", *arguments) as process:
        yield process
