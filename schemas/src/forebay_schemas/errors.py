"""The base class of all errors raised on purpose, and their exit codes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^'\"\n]*@")


def without_credentials(text: str) -> str:
    """The text without the user name and password in URLs."""
    return _URL_CREDENTIALS.sub("[hidden]@", text) if "://" in text else text


class ExitCode(IntEnum):
    """The exit statuses of the commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    PARTLY = 4


class ForebayError(Exception):
    """An error that a person can act on. ``str(error)`` is one sentence for people; ``reason`` is a stable code for
    programs."""

    reason = "failed"
    exit_code = ExitCode.FAILED


class UsageError(ForebayError):
    """Invalid input: ``field`` names it, ``fix`` says what to give instead."""

    reason = "usage"
    exit_code = ExitCode.USAGE

    def __init__(self, field: str, problem: str, *, fix: str) -> None:
        """Credentials in URLs are removed from the message."""
        problem = without_credentials(problem)
        super().__init__(f"{field}: {problem}; {fix}")
        self.field = field
        self.problem = problem
        self.fix = fix


class EnvelopeError(UsageError):
    """Bytes or fields that are not a valid envelope. ``request_id``: if it could be read."""

    reason = "undecodable"

    def __init__(self, field: str, problem: str, *, fix: str, request_id: str | None = None) -> None:
        super().__init__(field, problem, fix=fix)
        self.request_id = request_id


class EnvelopeTooLargeError(EnvelopeError):
    """A record larger, uncompressed, than its topic accepts."""

    reason = "request_too_large"


class BrokerUnreachableError(ForebayError):
    """No broker answered in time."""

    reason = "broker_unreachable"
    exit_code = ExitCode.UNREACHABLE


class KafkaFailedError(ForebayError):
    """The broker answered with an error that retries do not mend."""

    reason = "kafka_failed"


class AuthenticationFailedError(KafkaFailedError):
    """The brokers refused the credentials, or require credentials that are missing."""

    reason = "authentication_failed"


class TlsFailedError(KafkaFailedError):
    """The TLS handshake failed: an invalid certificate, or only one side speaks TLS."""

    reason = "tls_failed"


class DeniedError(KafkaFailedError):
    """The brokers authenticated the client, but its ACLs lack a permission.

    ``lacking``: operations and resources in Kafka's words ("Write", "topic forebay.default.results"), the first also as
    ``operation`` and ``resource``. ``principal``: as far as the client knows it ("User:alice").
    """

    reason = "denied"

    def __init__(self, lacking: Sequence[tuple[str, str]], *, principal: str, doing: str) -> None:
        what = ", nor ".join(f"{operation} {resource}" for operation, resource in lacking)
        super().__init__(
            f"denied while {doing}: {principal} may not {what}; "
            "have an administrator allow it (docs/security.md has the list)"
        )
        self.lacking = tuple(lacking)
        self.operation, self.resource = lacking[0]
        self.principal = principal


class TopicMissingError(ForebayError):
    """A required topic does not exist. Forebay never relies on automatic topic creation."""

    reason = "topic_missing"

    def __init__(self, topics: list[str], *, pool: str, command: str | None = None) -> None:
        """``command``: what creates them; by default what creates the topics of ``pool``."""
        names = ", ".join(sorted(topics))
        command = f"forebay topics create --pool {pool}" if command is None else command
        super().__init__(f"missing topic {names}; create it with: {command}")
        self.topics = topics
