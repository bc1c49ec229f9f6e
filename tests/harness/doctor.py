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
from threading import Thread

from harness.worker_process import WRONG_CLOCK, clean_environment
from harness.workers import TESTS

SECONDS_MAX = 20.0
"""What is promised for the worst case; every test here fails when it takes longer."""

_MACHINE_SECONDS = 30.0
"""What a busy machine may take for starting Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a doctor said."""

    code: int
    findings: tuple[dict[str, str | None], ...]
    out: str
    err: str

    def status(self, check: str) -> str:
        """Of a check with one finding."""
        [finding] = self.of(check)
        return str(finding["status"])

    def of(self, check: str) -> list[dict[str, str | None]]:
        """All findings of a check."""
        return [finding for finding in self.findings if finding["check"] == check]

    def text(self, check: str) -> str:
        """What is said and what is to be done, of all findings of a check."""
        return "\n".join(f"{finding['detail']} -> {finding['fix']}" for finding in self.of(check))

    def wrong(self) -> dict[str, str]:
        """The status of each check that is neither ok nor skipped."""
        return {
            str(finding["check"]): str(finding["status"])
            for finding in self.findings
            if finding["status"] not in ("ok", "skipped")
        }


def examine(package: str, settings: Mapping[str, str], *options: str, wall_ahead_seconds: float = 0.0) -> Examined:
    """``package``: forebay_producer or forebay_worker. ``settings``: FOREBAY_ variables, and others."""
    program = f"from {package}.cli import main; main()"
    if wall_ahead_seconds:
        program = WRONG_CLOCK.format(seconds=wall_ahead_seconds) + program
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "doctor", "--output", "json", *options],
        env=clean_environment(settings),
        cwd=TESTS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX + _MACHINE_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    findings = tuple(json.loads(line) for line in done.stdout.splitlines()) if done.stdout.startswith("{") else ()
    return Examined(code=done.returncode, findings=findings, out=done.stdout, err=done.stderr)


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

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
