"""Processes that are ended however their owner goes. Real processes, but no Java."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay_sandbox.process import (
    RunRecord,
    Watchdog,
    clean_up_after_crashed_runs,
    end_all,
    kill_all,
    new_token,
    processes_of,
    token_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SLEEP = "import time; time.sleep(600)"
_IGNORE_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a Python that does as the script says, with further arguments on its command line."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, *args: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", script, *args], stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_process_is_ours_only_by_its_token(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    token, other = new_token(), new_token()
    mine = start(_SLEEP, token_option(token))
    start(_SLEEP, token_option(other))
    start(_SLEEP, token)
    _wait(lambda: bool(processes_of(token)), "the process shows up")

    assert [process.pid for process in processes_of(token)] == [mine.pid]


def test_strangers_survive_when_a_run_is_killed(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    token = new_token()
    mine, stranger = start(_SLEEP, token_option(token)), start(_SLEEP, token_option(new_token()))
    _wait(lambda: bool(processes_of(token)), "the process shows up")

    kill_all(token)

    assert mine.wait(10) == -9
    assert stranger.poll() is None


def test_a_stopped_process_ends_tidily_too(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    token = new_token()
    mine = start(_SLEEP, token_option(token))
    _wait(lambda: bool(processes_of(token)), "the process shows up")
    psutil.Process(mine.pid).suspend()

    end_all(token)

    assert mine.wait(10) == -15


def test_what_ignores_sigterm_is_killed(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay_sandbox.process.END_SECONDS_MAX", 0.5)
    token = new_token()
    mine = start(_IGNORE_SIGTERM, token_option(token))
    assert mine.stdout is not None
    assert mine.stdout.readline() == b"ready\n"

    end_all(token)

    assert mine.wait(10) == -9


_OWNER = """
import subprocess, sys, time
from pathlib import Path
from forebay_sandbox.process import RunRecord, Watchdog, token_option
token, folder = sys.argv[1], Path(sys.argv[2])
folder.mkdir()
watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=(folder,)))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", token_option(token)])
print(watchdog.pid, flush=True)
time.sleep(600)
"""


def _start_owner(start: Callable[..., subprocess.Popen[bytes]], token: str, folder: Path) -> tuple[int, int]:
    owner = start(_OWNER, token, str(folder))
    assert owner.stdout is not None
    watchdog_pid = int(owner.stdout.readline())
    _wait(lambda: bool(processes_of(token)), "the owner's child shows up")
    return owner.pid, watchdog_pid


def test_a_killed_owner_leaves_no_process_and_no_folder(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    token, folder = new_token(), tmp_path / "data"
    owner_pid, _ = _start_owner(start, token, folder)

    psutil.Process(owner_pid).kill()

    _wait(lambda: not processes_of(token), "the child is killed")
    _wait(lambda: not folder.exists(), "the folder is deleted")
    _wait(lambda: not list((tmp_path / "cache").rglob("*.json")), "the record is deleted")


def test_what_owner_and_watchdog_left_behind_is_cleaned_up_by_the_next_run(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    token, folder = new_token(), tmp_path / "data"
    owner_pid, watchdog_pid = _start_owner(start, token, folder)
    psutil.Process(watchdog_pid).kill()
    psutil.Process(owner_pid).kill()
    _wait(lambda: psutil.Process(owner_pid).status() == psutil.STATUS_ZOMBIE, "the owner ends")
    assert processes_of(token)

    clean_up_after_crashed_runs()

    assert not processes_of(token)
    assert not folder.exists()
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_run_whose_owner_lives_is_left_alone(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    token, folder = new_token(), tmp_path / "data"
    _start_owner(start, token, folder)

    clean_up_after_crashed_runs()

    assert processes_of(token)
    assert folder.exists()


def test_an_owner_whose_process_id_was_given_to_another_is_gone() -> None:
    record = RunRecord.of_this_process(token=new_token(), folders_to_delete=())
    older = RunRecord(
        token=record.token,
        owner_pid=record.owner_pid,
        owner_created=record.owner_created - 5,
        folders_to_delete=(),
    )

    assert record.owner_lives()
    assert not older.owner_lives()


def test_a_damaged_record_is_deleted(tmp_path: Path) -> None:
    record = RunRecord.of_this_process(token=new_token(), folders_to_delete=(tmp_path,))
    record.write()
    record.path.write_text('{"token": ')

    clean_up_after_crashed_runs()

    assert not record.path.exists()
    assert tmp_path.exists()


def test_closing_the_watchdog_cleans_up_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    token = new_token()
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=(folder,)))
    with subprocess.Popen([sys.executable, "-c", _SLEEP, token_option(token)]) as child:
        _wait(lambda: bool(processes_of(token)), "the child shows up")
        watchdog.close()
        assert child.wait(10) == -9

    assert not folder.exists()
