"""An incident that is interrupted before its letters are there leaves no broken engine behind."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_sandbox.errors import SandboxError
from forebay_sandbox.stack import incident


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SandboxError("the broker did not take all requests")])
def test_the_engine_is_mended_when_an_incident_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    asked: list[str] = []

    def call(_url: str, method: str, _path: str, _document: dict[str, Any] | None) -> tuple[int, bytes]:
        asked.append(method)
        return 204, b""

    def fails(*_: object) -> int:
        raise failure

    monkeypatch.setattr(incident, "call", call)
    monkeypatch.setattr(incident, "_dead_letters", fails)
    kafka: Any = None
    with pytest.raises(type(failure)):
        incident.break_out("http://engine", kafka, pool_name="p")
    assert asked == ["PUT", "DELETE"]
