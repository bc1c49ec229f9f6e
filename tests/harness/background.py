"""Threads and servers that run beside a test for the length of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import TCPServer
from types import TracebackType
from typing import Self

_POLL_SECONDS = 0.02
"""Upper bound on the end of a server. The library's own half second adds up over many tests."""


class Background:
    """Runs `_work` while the block runs; `_work` returns soon after `_stop` is set. `_close` follows it."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._close()

    def _work(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Releases what `_work` used."""


@contextmanager
def running_server(server: TCPServer) -> Iterator[str]:
    """Serves while the block runs. Yields the server's URL on 127.0.0.1, without a path."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
