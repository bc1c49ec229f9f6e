"""Answers of /livez and /readyz. Called on the operations port's thread: reads only what any thread may read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from forebay_schemas.clock import Clock
from forebay_schemas.formats.avro_process import ProcessReader
from forebay_schemas.formats.schema_fetcher import SchemaFetcher
from forebay_worker.cluster.startup import Cluster
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.intake.intake import Intake
from forebay_worker.ops.loop_watch import LoopWatch
from forebay_worker.ops.run_state import RunState
from forebay_worker.ops.status import credentials_refused
from forebay_worker.outcome.delivery import Delivery

HEARTBEAT_SECONDS_MAX = 30.0

HELD_SECONDS_BEFORE_UNREADY = 5.0
"""A handler that blocks for this long makes /readyz fail too."""


class Probes:
    """``expected``: names of the intakes to wait for. ``following_troubles``: why coordination cannot be read."""

    def __init__(
        self,
        *,
        state: RunState,
        clock: Clock,
        expected: Collection[str],
        intakes: Mapping[str, Intake],
        following_troubles: Callable[[], list[str]],
        schemas: SchemaFetcher | None,
        foreign: ProcessReader,
        delivery: Delivery,
        dispatcher: Dispatcher,
        cluster: Cluster,
        watch: LoopWatch,
    ) -> None:
        self._state = state
        self._clock = clock
        self._expected = expected
        self._intakes = intakes
        self._following_troubles = following_troubles
        self._schemas = schemas
        self._foreign = foreign
        self._delivery = delivery
        self._dispatcher = dispatcher
        self._cluster = cluster
        self._watch = watch

    def not_alive(self) -> list[str]:
        """Loops that have stood still for too long; [] if there are none."""
        now = self._clock.monotonic()
        beats = {f"intake {name}": intake.heartbeat for name, intake in list(self._intakes.items())}
        beats["loop"] = self._state.heartbeat
        problems = [
            f"{name} has not turned for {now - beat:.0f} s"
            for name, beat in beats.items()
            if now - beat > HEARTBEAT_SECONDS_MAX
        ]
        if now - beats["loop"] > HEARTBEAT_SECONDS_MAX and (words := self._watch.words(time.monotonic())) is not None:
            problems.append(words)
        return problems

    def not_ready(self) -> list[str]:
        """Reasons why the worker cannot work; [] if there are none."""
        if self._state.drain.is_set():
            return ["draining"]
        if self._state.waits_for is not None:
            return [self._state.waits_for]
        problems = [f"{name}: the group has not assigned partitions yet" for name in self._unassigned()]
        problems += [trouble for intake in list(self._intakes.values()) for trouble in intake.troubles]
        problems += self._following_troubles()
        if self._schemas is not None and self._schemas.trouble is not None:
            problems.append(f"records wait for their schema: {self._schemas.trouble}")
        if self._foreign.trouble is not None:
            problems.append(f"records by schemas of others wait: {self._foreign.trouble}")
        if not self._delivery.accepts(self._clock.monotonic()):
            problems.append("results are not delivered")
        problems += credentials_refused(self._dispatcher)
        now = time.monotonic()
        if self._watch.held_seconds(now) >= HELD_SECONDS_BEFORE_UNREADY and (words := self._watch.words(now)):
            problems.append(words)
        return problems + self._cluster.troubles

    def _unassigned(self) -> list[str]:
        is_over = self._clock.monotonic() >= self._state.assigned_by
        return [
            name
            for name in self._expected
            if (intake := self._intakes.get(name)) is None or not (intake.assigned_once or is_over)
        ]
