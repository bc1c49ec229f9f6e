"""A command whose standard streams are closed, full or of few characters ends in one line, never in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

FULL = Path("/dev/full")
CLOSED = "error: cannot write to stdout: it is closed\n"
NO_SPACE = "error: cannot write to stdout: No space left on device\n"

PRINTS = "def main(): print('x')"
PRINTS_A_LOT = "def main():\n    for _ in range(100_000): print('x')"
PRINTS_BYTES = "import sys\ndef main(): sys.stdout.buffer.write(b'x')"
PRINTS_AND_FAILS = "import sys\ndef main():\n    print('x')\n    sys.exit(3)"
OPENS = "import os\ndef main(): print(os.open('/dev/null', os.O_RDONLY) > 2)"
READS = "import sys\ndef main():\n    try: sys.stdin.read()\n    except OSError as error: print(error.strerror)"
WARNS = "import sys\ndef main():\n    print('lost', file=sys.stderr)\n    print('kept')"


def close(*descriptors: int) -> Callable[[], None]:
    def close_all() -> None:
        for each in descriptors:
            os.close(each)

    return close_all


def start(
    tmp_path: Path,
    module: str,
    *arguments: str | bytes,
    before: Callable[[], None] | None = None,
    stdout: int = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    (tmp_path / "a_command.py").write_text(module, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from forebay_schemas.runtime import entry; entry._run('a_command')", *arguments],
        env={**os.environ, "PYTHONPATH": str(tmp_path), **(environment or {})},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        preexec_fn=before,
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


@pytest.mark.parametrize("module", [PRINTS, PRINTS_A_LOT, PRINTS_BYTES, PRINTS_AND_FAILS])
def test_a_stdout_that_is_closed_or_full_is_said_in_one_line(tmp_path: Path, module: str) -> None:
    assert start(tmp_path, module, before=close(1)) == (1, "", CLOSED)
    with FULL.open("wb") as full:
        assert start(tmp_path, module, stdout=full.fileno()) == (1, "", NO_SPACE)


@pytest.mark.parametrize("module", [PRINTS, PRINTS_A_LOT, PRINTS_BYTES])
def test_whoever_reads_may_go(tmp_path: Path, module: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert start(tmp_path, module, stdout=writer) == (141, "", "")
    finally:
        os.close(writer)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    assert start(tmp_path, OPENS, before=close(0, 2)) == (0, "True\n", "")
    assert start(tmp_path, READS, before=close(0)) == (0, "Bad file descriptor\n", "")
    assert start(tmp_path, WARNS, before=close(2)) == (0, "kept\n", "")
    assert start(tmp_path, "def main(): pass", before=close(0, 1, 2)) == (0, "", "")


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", r"\u00e9 \ud83d\ude00"), ("latin-1", "\udce9" + r" \ud83d\ude00"), ("utf-8", "é 😀")],
)
def test_what_the_encoding_cannot_show_is_escaped_as_json_does(tmp_path: Path, encoding: str, shown: str) -> None:
    module = f"def main(): print({'é 😀'!r})"
    (tmp_path / "a_command.py").write_text(module, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from forebay_schemas.runtime import entry; entry._run('a_command')"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode("utf-8", "surrogateescape") == shown + "\n"


def test_arguments_are_utf_8_where_the_locale_knows_ascii_alone(tmp_path: Path) -> None:
    module = "import sys\ndef main(): print(ascii(sys.argv[1:]))"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    # What is not UTF-8 stays as it came.
    code, out, err = start(tmp_path, module, "😀-4d", b"\xe9", environment=ascii_only)
    assert (code, out, err) == (0, ascii(["😀-4d", "\udce9"]) + "\n", "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("submit", "-"), "error: FILE: stdin is closed; redirect the input with < or |\n"),
        (("cancel", "-"), "error: ID: stdin is closed; redirect the input with < or |\n"),
    ],
)
def test_a_command_that_reads_a_closed_stdin_says_so(arguments: tuple[str, ...], error: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("forebay"), *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=close(0),
    )
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", error)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("forebay", ("plan", "--rate", "high=2", "--service-seconds", "4", "--limit", "40")),
        ("forebay-worker", ("--help",)),
        ("forebay-sandbox", ("--help",)),
    ],
)
def test_each_program_says_that_stdout_is_full(program: str, arguments: tuple[str, ...]) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr.decode()) == (1, NO_SPACE)
