"""The operator on call: replays and discards dead letters by the plan. A thread of its own; runs commands, and reads
the audit topic to see when they begin."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from chaos.acts import Handle
from chaos.commands import Command, Commands
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.topics import Pool
from harness.background import Background

_BEGIN_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS_MAX = 3.0
_LOG = logging.getLogger("tests.kafka")


class OnCall(Background):
    """Carries out ``handles`` while the block runs; what it is at when the block ends it still carries out."""

    def __init__(self, kafka: KafkaAccess, pool: Pool, *, commands: Commands, handles: Sequence[Handle]) -> None:
        super().__init__("on-call")
        self._commands = commands
        self._audit = TopicPartition(pool.audit, 0)
        config = {**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers, "logger": _LOG}
        self._consumer = Consumer({**config, "group.id": "chaos-on-call"})
        self._handles = handles
        self._trouble: Exception | None = None

    def _close(self) -> None:
        self._consumer.close()
        if self._trouble is not None:
            raise self._trouble

    def states(self) -> dict[str, int]:
        """Numbers of open, replayed and discarded dead letters, as the command shows them."""
        printed = self._commands.run("dead-letters", "list", "--output", "json")
        groups: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
        return {state: sum(group[state] for group in groups) for state in ("open", "replayed", "discarded")}

    def _work(self) -> None:
        started = time.monotonic()
        try:
            for handle in self._handles:
                if self._stop.wait(max(0.0, handle.at_seconds - (time.monotonic() - started))):
                    return
                self._carry_out(handle)
        except Exception as trouble:  # noqa: BLE001 - raised again where the block ends
            self._trouble = trouble

    def _carry_out(self, handle: Handle) -> None:
        arguments = _arguments(handle)
        for kill_after_seconds in handle.kills_after_seconds:
            self._commands.end(self._begin(arguments), kill_after_seconds=kill_after_seconds)
        if handle.stop_after_seconds is None:
            self._commands.run(*arguments)
            return
        command = self._begin(arguments)
        command.wait(handle.stop_after_seconds)
        command.signal(signal.SIGSTOP)
        other = self._commands.start(*arguments)
        other.wait(handle.stopped_seconds)
        command.signal(signal.SIGCONT)
        self._commands.end(command)
        self._commands.end(other)

    def _begin(self, arguments: Sequence[str]) -> Command:
        """A command that has said something on the audit topic, or ended without."""
        before = self._audit_end()
        command = self._commands.start(*arguments)
        deadline = time.monotonic() + _BEGIN_SECONDS_MAX
        while not command.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            if self._audit_end() > before:
                break
        return command

    def _audit_end(self) -> int:
        try:
            return self._consumer.get_watermark_offsets(self._audit, timeout=_ANSWER_SECONDS_MAX)[1]
        except KafkaException:
            return -1  # its leader is away for a moment


def _arguments(handle: Handle) -> list[str]:
    options = {
        "--reason": handle.reason,
        "--tier": handle.tier,
        "--limit": handle.limit,
        "--rate": handle.rate_per_second,
        "--canary": handle.canary,
    }
    words = [str(word) for option in options.items() if option[1] is not None for word in option]
    return ["dead-letters", handle.handling.value, *words, "--yes", "--output", "json"]
