"""The sandbox's own errors. Pure."""

from __future__ import annotations

from forebay_schemas.errors import ForebayError


class SandboxError(ForebayError):
    """The sandbox could not do what was asked; ``str(error)`` says why, and what to do."""

    reason = "sandbox_failed"


class PrerequisiteMissingError(SandboxError):
    """A required program is missing (Java, Maven). Tests skip on this error, except in CI."""

    reason = "prerequisite_missing"


class JarsError(SandboxError):
    """Maven ran, but did not fetch Kafka's jars."""

    reason = "jars_failed"


class PortTakenError(SandboxError):
    """A broker's port is taken by another program."""

    reason = "port_taken"

    def __init__(self, port: int, *, fix: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is in use by another program; {fix}")
        self.port = port


class BrokerStartError(SandboxError):
    """A broker ended, or did not answer a metadata request in time. The message ends with its last log lines."""

    reason = "broker_start_failed"


class ToolError(SandboxError):
    """One of Kafka's console tools could not run, or failed."""

    reason = "tool_failed"
