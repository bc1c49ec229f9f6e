"""A backend of one's own, as ARCHITECTURE.md explains it: it answers with what the payload says. No I/O."""

from __future__ import annotations

import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work


class Echo:
    """Answers ``{"say": "hello"}`` with ``{"said": "hello"}``."""

    async def run(self, work: Work) -> Answer:
        """Raises ``BackendFailed`` where there is nothing to say."""
        assert work.request is not None
        payload = msgspec.json.decode(work.request.payload)
        if "say" not in payload:
            raise BackendFailed(Failure(reason=Reason.BACKEND_REJECTED, error="payload: say is missing"))
        return Answer(body={"said": payload["say"]}, output_tokens=len(payload["say"].split()))

    async def close(self) -> None:
        """It holds nothing."""
