"""`forebay doctor` and `forebay-worker doctor` as users run them, and servers they may meet. Starts processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.background import running_server
from harness.worker_process import WRONG_CLOCK, clean_environment
from harness.workers import TESTS

SECONDS_MAX = 20.0
"""Upper bound on a run of a doctor, as docs promise it for the worst case."""

_MACHINE_SECONDS = 30.0
"""Extra time for starting Python on a busy machine."""

_MAIN_MODULES = {"forebay_producer": "forebay_producer.cli.app", "forebay_worker": "forebay_worker.cli"}
_DOCTOR_MODULES = {"forebay_producer": "forebay_producer.cli.doctor", "forebay_worker": "forebay_worker.doctor.examine"}

_PROGRAM = """
import json, os, sys, tempfile
import {doctor_module}  # once, not in each child
from {main_module} import main

children = []
codes = []


def wait():
    codes.append(os.waitstatus_to_exitcode(os.waitpid(children[len(codes)][0], 0)[1]))


for case in json.load(sys.stdin):
    if len(children) - len(codes) == 2:
        wait()
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ |= case["settings"]
        exec(case["prelude"])
        sys.argv[1:] = case["arguments"]
        main()
        sys.exit()
    children.append((pid, out, err))

while len(codes) < len(children):
    wait()
ended = []
for code, (_, out, err) in zip(codes, children):
    out.seek(0)
    err.seek(0)
    ended.append(dict(code=code, out=out.read().decode(), err=err.read().decode()))
print(json.dumps(ended))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Output of a doctor."""

    code: int
    findings: tuple[dict[str, str | None], ...]
    out: str
    err: str

    def status(self, check: str) -> str:
        """The status of a check with one finding."""
        [finding] = self.of(check)
        return str(finding["status"])

    def of(self, check: str) -> list[dict[str, str | None]]:
        """All findings of a check."""
        return [finding for finding in self.findings if finding["check"] == check]

    def text(self, check: str) -> str:
        """Words and fixes of all findings of a check."""
        return "\n".join(f"{finding['detail']} -> {finding['fix']}" for finding in self.of(check))

    def wrong(self) -> dict[str, str]:
        """The status of each check that is neither ok nor skipped."""
        return {
            str(finding["check"]): str(finding["status"])
            for finding in self.findings
            if finding["status"] not in ("ok", "skipped")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``settings``: FOREBAY_ variables, and others. ``options``: of the command. The wall clock may be wrong."""

    settings: Mapping[str, str]
    options: tuple[str, ...] = ()
    wall_ahead_seconds: float = 0.0


def examine(package: str, settings: Mapping[str, str], *options: str) -> Examined:
    """``package``: forebay_producer or forebay_worker."""
    return examine_all(package, {"": Case(settings=settings, options=options)})[""]


def examine_all(package: str, cases: Mapping[str, Case]) -> dict[str, Examined]:
    """The doctor's output for each case, from processes that are forked from one that has imported it: the import takes
    longer than most examinations. Two run at a time; more would keep each other from answering in time."""
    told = [
        {
            "settings": dict(case.settings),
            "arguments": ["doctor", "--output", "json", *case.options],
            "prelude": WRONG_CLOCK.format(seconds=case.wall_ahead_seconds) if case.wall_ahead_seconds else "",
        }
        for case in cases.values()
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            _PROGRAM.format(main_module=_MAIN_MODULES[package], doctor_module=_DOCTOR_MODULES[package]),
        ],
        env=clean_environment({}),
        cwd=TESTS,
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX * len(cases) + _MACHINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: _examined(**ended) for name, ended in zip(cases, json.loads(done.stdout), strict=True)}


def _examined(*, code: int, out: str, err: str) -> Examined:
    assert "Traceback" not in err, err
    findings = tuple(json.loads(line) for line in out.splitlines()) if out.startswith("{") else ()
    return Examined(code=code, findings=findings, out=out, err=err)


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def backend(*, status: int, body: bytes) -> Iterator[str]:
    """A server that answers everything with the same."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
            """Nothing."""

    with running_server(ThreadingHTTPServer(("127.0.0.1", 0), Answer)) as url:
        yield url
