"""The program behind `harness.warm_process`: imports a command once, and forks a process of it for each request.

Standard library only, until it imports the command. Forks; one thread.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import os
import signal
import socket
import sys
import time
from importlib import import_module

_REQUEST_BYTES_MAX = 1 << 20


def _serve(requests: socket.socket) -> dict[str, object]:
    """Answers each request with the process id of a child that has a new parent; returns in that child."""
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        if not message:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child:
                os.write(writing, b"%d" % child)
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0005)
            requests.close()
            os.close(reading)
            os.close(writing)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            request: dict[str, object] = json.loads(message)
            return request
        os.waitpid(between, 0)
        requests.send(os.read(reading, 32))
        for each in (reading, writing, *streams):
            os.close(each)


def _become(request: dict[str, object]) -> None:
    """Makes of this process what it would be had the command been started in it."""
    environment, words = request["environment"], request["words"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    sys.argv = words
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    at_once = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, "rb", closefd=False), encoding="utf-8")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, errors="strict", at_once=at_once)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, errors="backslashreplace", at_once=at_once)  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    time.tzset()


def _stream(number: int, *, errors: str, at_once: bool) -> io.TextIOWrapper:
    by_lines = number == 2 or os.isatty(number)
    raw = io.FileIO(number, "wb", closefd=False)
    buffer = raw if at_once else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=by_lines, write_through=at_once)


def _main() -> None:
    """``sys.argv``: the descriptor that requests come by, and the modules to import."""
    for module in sys.argv[2:]:
        import_module(module)
    gc.collect()
    # Nothing that all have is copied because one of them looked for garbage.
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(request)
    exec(str(request["program"]), {"__name__": "__main__"})  # noqa: S102 - as `python -c` does


if __name__ == "__main__":
    _main()
