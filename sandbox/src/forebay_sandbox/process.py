"""The sandbox's processes, and how they end even if their owner was killed.

Reads the process table, sends signals, writes run records in the user's cache folder. A process belongs to a run only
if its command line carries the run's random token; the token is recorded before the first process starts. Process ids
alone are not trusted: the system reuses them.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from forebay_sandbox.errors import SandboxError
from forebay_sandbox.files import cache_root, write_atomically

END_SECONDS_MAX = 15
_LOOK_SECONDS = 0.02
_TOKEN_OPTION = "-Dforebay.sandbox.run="  # noqa: S105 - the name of an option, not a secret


def new_token() -> str:
    """A globally unique name for one run."""
    return secrets.token_hex(16)


def token_option(token: str) -> str:
    """The JVM option that marks a process as one of the run ``token``."""
    return f"{_TOKEN_OPTION}{token}"


def processes_of(token: str) -> list[psutil.Process]:
    """The living processes of one run."""
    option = token_option(token)
    mine = []
    for process in psutil.process_iter():
        try:
            # A zombie has no command line, so it does not count as living.
            if option in process.cmdline():
                mine.append(process)
        except psutil.Error:
            continue
    return mine


def kill_all(token: str) -> None:
    """Sends SIGKILL to every process of the run and waits for their end. Stopped (SIGSTOP) ones end, too."""
    deadline = time.monotonic() + END_SECONDS_MAX
    while left := processes_of(token):
        if time.monotonic() > deadline:
            raise SandboxError(f"process {left[0].pid} does not end; it was killed {END_SECONDS_MAX} s ago")
        for process in left:
            try:
                # psutil compares the creation time first, so a reused id is never signalled.
                process.kill()
            except psutil.NoSuchProcess:
                continue
        # Polled, not waited for: waiting would take a child's exit status from its owner.
        time.sleep(_LOOK_SECONDS)


def end_all(token: str) -> None:
    """Sends SIGTERM to every process of the run, waits, and kills what is left."""
    for process in processes_of(token):
        try:
            process.terminate()
            # A stopped process would not see the signal.
            process.resume()
        except psutil.NoSuchProcess:
            continue
    deadline = time.monotonic() + END_SECONDS_MAX
    while processes_of(token) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    kill_all(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run that must not outlive its owner: the token of its processes, and folders to delete."""

    token: str
    owner_pid: int
    owner_created: float
    folders_to_delete: tuple[str, ...]

    @classmethod
    def of_this_process(cls, *, token: str, folders_to_delete: tuple[Path, ...]) -> RunRecord:
        """A record owned by the calling process."""
        owner = psutil.Process()
        return cls(
            token=token,
            owner_pid=owner.pid,
            owner_created=owner.create_time(),
            folders_to_delete=tuple(str(folder) for folder in folders_to_delete),
        )

    @property
    def path(self) -> Path:
        """Where this record lies on disk."""
        return _records_folder() / f"{self.token}.json"

    def write(self) -> None:
        """Put the record on disk, whole."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        write_atomically(self.path, json.dumps(fields))

    @classmethod
    def read(cls, path: Path) -> RunRecord | None:
        """The record in ``path``; None if missing or invalid."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                token=str(fields["token"]),
                owner_pid=int(fields["owner_pid"]),
                owner_created=float(fields["owner_created"]),
                folders_to_delete=tuple(str(folder) for folder in fields["folders_to_delete"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def owner_lives(self) -> bool:
        """Whether the process that wrote the record still runs."""
        try:
            owner = psutil.Process(self.owner_pid)
            # Linux reports creation times in hundredths of a second.
            return abs(owner.create_time() - self.owner_created) < 0.1 and owner.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def clean_up(self) -> None:
        """Kills the run's processes, deletes its folders and the record. Safe to repeat, and to run concurrently."""
        kill_all(self.token)
        for folder in self.folders_to_delete:
            shutil.rmtree(folder, ignore_errors=True)
        self.path.unlink(missing_ok=True)


def _records_folder() -> Path:
    folder = cache_root() / "runs"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def clean_up_after_crashed_runs() -> None:
    """Cleans up runs whose owner and watchdog were both killed."""
    for path in _records_folder().glob("*.json"):
        record = RunRecord.read(path)
        if record is None:
            path.unlink(missing_ok=True)
        elif not record.owner_lives():
            record.clean_up()


class Watchdog:
    """A small process that cleans up a run when its owner closes it or dies.

    It reads from a pipe, which even kill -9 of the owner closes: a regular end and a crash are handled alike.
    """

    def __init__(self, record: RunRecord) -> None:
        record.write()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "forebay_sandbox.watchdog", str(record.path)],
            stdin=subprocess.PIPE,
            # Its own session: Ctrl-C in the terminal must not end it before its owner.
            start_new_session=True,
        )
        self._record = record

    @property
    def pid(self) -> int:
        """The watchdog's own process id."""
        return self._process.pid

    def close(self) -> None:
        """Cleans up the run; returns when that is done."""
        try:
            self._process.communicate(timeout=2 * END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        # Work is left here only if the watchdog itself was killed.
        self._record.clean_up()
