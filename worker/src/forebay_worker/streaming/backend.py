"""A backend around the real one: gives each execution whose answer is followed a sink for its events."""

from __future__ import annotations

from forebay_schemas.contract.reply import Reply, read_reply
from forebay_worker.request.backend import Backend
from forebay_worker.request.work import Answer, Work
from forebay_worker.streaming.outlet import Streams


class StreamingBackend:
    """Executes requests on ``backend``; those whose ``reply`` says ``stream`` with pieces."""

    def __init__(self, backend: Backend, streams: Streams) -> None:
        self._backend = backend
        self._streams = streams

    async def run(self, work: Work) -> Answer:
        reply = _followed(work)
        run = None if reply is None else await self._streams.begin(work, reply)
        if run is None:
            return await self._backend.run(work)
        work.stream = run
        try:
            answer = await self._backend.run(work)
        except BaseException:
            self._streams.break_off(run, work)
            raise
        finally:
            work.stream = None
        self._streams.end(run)
        return answer

    async def close(self) -> None:
        await self._backend.close()


def _followed(work: Work) -> Reply | None:
    """The reply of a request whose answer somebody follows."""
    assert work.request is not None
    raw = bytes(work.request.reply)
    if b'"stream"' not in raw:
        return None  # most have none
    reply = read_reply(raw)
    return reply if reply is not None and reply.stream else None
