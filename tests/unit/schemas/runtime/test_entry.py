"""Ctrl-C while a command starts: it ends with 130, whatever is imported just then, and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import psutil
import pytest

INTERRUPT = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01)"


def start(tmp_path: Path, module: str, *, ctrl_c: signal.Handlers = signal.SIG_DFL) -> subprocess.CompletedProcess[str]:
    """Enters a command that consists of this module."""
    (tmp_path / "a_command.py").write_text(module, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-c", "from forebay_schemas.runtime import entry; entry._run('a_command')"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(f"{INTERRUPT}\ndef main(): pass", id="while-it-is-imported"),
        pytest.param(f"try:\n    {INTERRUPT}\nfinally:\n    1/0", id="within-what-would-swallow-it"),
        pytest.param(f"def main():\n    {INTERRUPT}", id="right-after"),
    ],
)
def test_ctrl_c_while_a_command_starts_ends_with_130_and_no_traceback(tmp_path: Path, module: str) -> None:
    done = start(tmp_path, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("callback", ["logger", "error_cb"])
@pytest.mark.parametrize(
    ("client", "call"),
    [
        ("AdminClient({'bootstrap.servers': '127.0.0.1:1'", "poll(1)"),
        ("Producer({'bootstrap.servers': '127.0.0.1:1'", "poll(1)"),
        ("Producer({'bootstrap.servers': '127.0.0.1:1'", "flush(1)"),
        ("Consumer({'bootstrap.servers': '127.0.0.1:1', 'group.id': 'g'", "poll(1)"),
        ("Consumer({'bootstrap.servers': '127.0.0.1:1', 'group.id': 'g'", "consume(5, 1)"),
    ],
)
def test_ctrl_c_within_a_callback_of_the_kafka_client_is_ctrl_c(
    tmp_path: Path, client: str, call: str, callback: str
) -> None:
    given = "}, logger=Log())" if callback == "logger" else ", 'error_cb': Log().log, 'log_level': 0})"
    module = f"""
import signal
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
class Log:
    def log(self, *_):
        signal.raise_signal(signal.SIGINT)
def main():
    client = {client}{given}
    while True:
        client.{call}
"""
    done = start(tmp_path, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_another_system_error_is_none(tmp_path: Path) -> None:
    done = start(tmp_path, "def main(): raise SystemError('of something else')")
    assert done.returncode == 1
    assert "SystemError: of something else" in done.stderr


def test_a_command_in_the_background_of_a_shell_goes_on(tmp_path: Path) -> None:
    done = start(tmp_path, f"{INTERRUPT}\ndef main(): print('done')", ctrl_c=signal.SIG_IGN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_first_process_of_a_container_ends_on_sigterm(tmp_path: Path) -> None:
    namespace = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*namespace, "true"], capture_output=True, timeout=60, check=False).returncode != 0:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("this user may not make a process namespace")
    module = "import os, time\ndef main():\n    print(os.getpid(), flush=True)\n    time.sleep(60)"
    (tmp_path / "a_command.py").write_text(module, encoding="utf-8")
    with subprocess.Popen(
        [*namespace, sys.executable, "-c", "from forebay_schemas.runtime import entry; entry._run('a_command')"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "1\n"
        [first] = psutil.Process(outer.pid).children()
        first.terminate()
        assert outer.wait(30) == 143


def test_all_commands_begin_there_and_nothing_is_imported_before() -> None:
    commands = {one.name: one.value for one in entry_points(group="console_scripts") if one.name.startswith("forebay")}
    assert commands == {
        "forebay": "forebay_schemas.runtime.entry:forebay",
        "forebay-worker": "forebay_schemas.runtime.entry:forebay_worker",
        "forebay-sandbox": "forebay_schemas.runtime.entry:forebay_sandbox",
    }
    imported = (
        "import sys, forebay_schemas.runtime.entry; print({'typer', 'confluent_kafka', 'msgspec'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("program", "distribution", "typed", "completed"),
    [
        ("forebay", "forebay-producer", "dead", ["dead-letters"]),
        ("forebay-worker", "forebay-worker", "cal", ["calibrate"]),
        ("forebay-sandbox", "forebay-sandbox", "inc", ["incident"]),
    ],
)
def test_each_program_has_a_version_and_completes_words(
    program: str, distribution: str, typed: str, completed: list[str]
) -> None:
    path = str(Path(sys.executable).with_name(program))

    def out(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [path, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    assert out("--version") == f"{program} {version(distribution)}\n"
    complete = f"_{program.upper().replace('-', '_')}_COMPLETE"
    asked = {complete: "complete_bash", "COMP_WORDS": f"{program} {typed}", "COMP_CWORD": "1"}
    assert out(**asked).split() == completed
    assert {"--install-completion", "--show-completion"} <= {*out("--help", COLUMNS="200").split()}
