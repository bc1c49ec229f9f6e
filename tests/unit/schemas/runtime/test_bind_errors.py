"""An HTTP port that cannot listen: the setting that is at fault is named."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry

from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.bind_errors import cannot_listen
from forebay_worker.ops.loop_watch import NOBODY, LoopWatch
from forebay_worker.ops.server import OpsPages, OpsServer

IN_USE = OSError(98, "Address already in use")


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        (IN_USE, "FOREBAY_OPS_PORT"),
        (PermissionError(13, "Permission denied"), "FOREBAY_OPS_PORT"),
        (OSError(99, "Cannot assign requested address"), "FOREBAY_OPS_HOST"),
        (OSError(97, "Address family not supported by protocol"), "FOREBAY_OPS_HOST"),
        (socket.gaierror(-2, "Name or service not known"), "FOREBAY_OPS_HOST"),
        (UnicodeError("label too long"), "FOREBAY_OPS_HOST"),
    ],
)
def test_the_setting_at_fault_is_named(error: OSError | UnicodeError, setting: str) -> None:
    said = str(cannot_listen(error, host="h", port=80, setting="FOREBAY_OPS"))
    assert said.startswith(f"{setting}: cannot listen on h:80 (")


@pytest.mark.parametrize(
    ("host", "setting"),
    [("192.0.2.1", "HOST"), ("a" * 70, "HOST"), ("host with blanks", "HOST"), ("127.0.0.1", "PORT")],
)
def test_a_worker_names_what_keeps_its_port_from_listening(host: str, setting: str) -> None:
    async def listen(port: int) -> None:
        registry = CollectorRegistry()
        watch = LoopWatch(ask=lambda _: None, look=lambda: NOBODY, clock=time.monotonic, whose="handler")
        pages = OpsPages(registry=registry, live=registry, not_alive=list, not_ready=list, status=dict, watch=watch)
        ops = OpsServer(pages)
        with pytest.raises(UsageError, match=f"FOREBAY_OPS_{setting}"):
            await ops.start(host=host, port=port)

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        asyncio.run(listen(taken.getsockname()[1]))
