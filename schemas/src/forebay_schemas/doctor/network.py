"""Which addresses no TCP connection can be made to, and why. Connects; each look is bounded, and what hangs (a name
server, say) is left behind in a daemon thread."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """Why there is no connection to an address, and what to do."""

    problem: str
    fix: str


_NO_NAME = "check the host name and this machine's DNS"
_NOBODY = "check the port, and that Kafka runs there"
_SILENCE = "check the address, and firewalls and network policies on the way"


def tcp_problems(addresses: Collection[Address], *, seconds: float) -> dict[Address, Unreachable]:
    """Those addresses that no TCP connection can be made to within ``seconds``."""
    answers: queue.SimpleQueue[tuple[Address, Unreachable | None]] = queue.SimpleQueue()

    def look(address: Address) -> None:
        answers.put((address, _tcp_problem(address, seconds=seconds)))

    for address in addresses:
        threading.Thread(target=look, args=(address,), daemon=True).start()
    problems = dict.fromkeys(addresses, _no_answer(seconds))
    end = time.monotonic() + seconds
    for _ in addresses:
        try:
            address, problem = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if problem is None:
            del problems[address]
        else:
            problems[address] = problem
    return problems


def _tcp_problem(address: Address, *, seconds: float) -> Unreachable | None:
    try:
        socket.create_connection(address, timeout=seconds).close()
    except TimeoutError:
        return _no_answer(seconds)
    except socket.gaierror:
        return Unreachable(problem="the name does not resolve", fix=_NO_NAME)
    except ConnectionRefusedError:
        return Unreachable(problem="connection refused", fix=_NOBODY)
    except OSError as error:
        return Unreachable(problem=(error.strerror or str(error)).lower(), fix=_SILENCE)
    return None


def _no_answer(seconds: float) -> Unreachable:
    return Unreachable(problem=f"no TCP connection within {seconds:g} s", fix=_SILENCE)
