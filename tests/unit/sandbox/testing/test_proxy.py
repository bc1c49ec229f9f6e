"""Effects of the TCP proxy on a connection, against a server that sends everything back."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing.proxy import BLACK_HOLE, CUT, PASS, Link, TcpProxy
from harness.background import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSWER_SECONDS_MAX = 20.0


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(65_536):
                self.request.sendall(data)
        except ConnectionError:
            pass


class _EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def echo_port() -> Iterator[int]:
    """The port of a server that sends everything back."""
    server = _EchoServer(("127.0.0.1", 0), _Echo)
    with running_server(server):
        yield server.server_address[1]


@pytest.fixture
def proxy(echo_port: int) -> Iterator[TcpProxy]:
    """A proxy in front of that server."""
    with TcpProxy(target_port=echo_port) as proxy:
        yield proxy


def _connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=_ANSWER_SECONDS_MAX)


def _echo(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    assert _receive(connection, len(data)) == data


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(65_536)
        assert piece, "the connection ended early"
        received += piece
    return received


def _wait_until_closed(proxy: TcpProxy) -> None:
    deadline = time.monotonic() + _ANSWER_SECONDS_MAX
    while proxy.open_connections:
        assert time.monotonic() < deadline, "the proxy holds on to a connection"
        time.sleep(0.01)


def test_bytes_pass_unchanged_and_in_order(proxy: TcpProxy) -> None:
    sent = bytes(range(256)) * 16_384
    with _connect(proxy) as connection:
        threading.Thread(target=connection.sendall, args=(sent,)).start()
        assert _receive(connection, len(sent)) == sent


def test_the_end_of_one_direction_passes_and_the_other_stays_open(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert _receive(connection, 10) == b"last words"
        assert connection.recv(1) == b""
    _wait_until_closed(proxy)


def test_a_cut_resets_open_connections_and_refuses_new_ones(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        _echo(connection, b"before")
        proxy.set(CUT)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
    assert proxy.open_connections == 0

    proxy.set(PASS)
    with _connect(proxy) as connection:
        _echo(connection, b"after")


def test_a_black_hole_passes_nothing_until_it_is_over(proxy: TcpProxy) -> None:
    with _connect(proxy) as old:
        _echo(old, b"before")
        proxy.set(BLACK_HOLE)
        with _connect(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"held")
                connection.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(_ANSWER_SECONDS_MAX)

            proxy.set(PASS)
            assert _receive(old, 4) == b"held"
            assert _receive(new, 4) == b"held"


def test_a_black_hole_can_be_cut(proxy: TcpProxy) -> None:
    proxy.set(BLACK_HOLE)
    with _connect(proxy) as connection:
        connection.sendall(b"held")
        while not proxy.open_connections:
            time.sleep(0.01)
        proxy.set(CUT)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_what_connects_as_the_link_is_cut_is_cut_too(proxy: TcpProxy) -> None:
    for _ in range(50):
        proxy.set(PASS)
        connections = [_connect(proxy) for _ in range(3)]
        proxy.set(CUT)
        for connection in connections:
            with connection, pytest.raises(ConnectionError):
                _echo(connection, b"x")


def test_a_delay_counts_each_way_and_does_not_limit_throughput(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        _echo(connection, b"warm")
        proxy.set(Link(delay_seconds=0.1))
        start = time.monotonic()
        _echo(connection, b"x")
        assert time.monotonic() - start >= 0.2

        # One piece after the other with 0.2 s for each would take 10 s.
        start = time.monotonic()
        for _ in range(50):
            connection.sendall(b"y" * 1000)
            time.sleep(0.002)
        _receive(connection, 50_000)
        assert 0.2 <= time.monotonic() - start < 5


def test_a_delay_that_is_lifted_delays_no_longer(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        proxy.set(Link(delay_seconds=1000))
        connection.sendall(b"x")
        proxy.set(PASS)
        assert _receive(connection, 1) == b"x"


def test_a_throttle_bounds_the_bytes_per_second(proxy: TcpProxy) -> None:
    proxy.set(Link(bytes_per_second=100_000))
    with _connect(proxy) as connection:
        start = time.monotonic()
        _echo(connection, b"x" * 50_000)
        assert 0.45 <= time.monotonic() - start < 5


def test_a_client_whose_target_is_gone_is_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Sometimes before it knows that it is connected.
    with TcpProxy(target_port=port) as proxy, pytest.raises(ConnectionResetError), _connect(proxy) as connection:
        connection.recv(1)


def test_a_client_that_resets_leaves_nothing_behind(proxy: TcpProxy) -> None:
    connection = _connect(proxy)
    _echo(connection, b"x")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    _wait_until_closed(proxy)
