"""An engine that takes in bodies of any size, keeps none, and answers each after a time. Listens on 127.0.0.1, in a
thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_PIECE_BYTES: Final = 1024 * 1024
_BODY: Final = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "seen"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
).encode()
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
_NOTHING: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


@dataclass(slots=True)
class PatientEngine:
    """``most``: how many it had at a time, at the most; ``answered``: how many it has answered."""

    seconds: float
    url: str = ""
    running: int = 0
    most: int = 0
    answered: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers what comes on a connection, one after another."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"POST "):
                    writer.write(_NOTHING)  # of metrics, which it has not
                    continue
                self.running += 1
                self.most = max(self.most, self.running)
                left = _length(head)
                while left:
                    left -= len(await reader.read(min(left, _PIECE_BYTES)))
                await asyncio.sleep(self.seconds)
                self.running -= 1
                self.answered += 1
                writer.write(_ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # asyncio would write a traceback of a connection that is cancelled
        finally:
            writer.close()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


@contextmanager
def patient_engine(*, seconds: float) -> Iterator[PatientEngine]:
    """An engine that answers after ``seconds``."""
    engine, loop, listening = PatientEngine(seconds), asyncio.new_event_loop(), threading.Event()
    ending = asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=_PIECE_BYTES)
        engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        listening.set()
        await ending.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="patient-engine")
    thread.start()
    try:
        assert listening.wait(10)
        yield engine
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
        loop.close()
