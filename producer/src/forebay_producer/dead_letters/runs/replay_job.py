"""One replay of a selection of dead letters: plans, limits the rate, stays behind live traffic, sends a canary first.

Uses the clients passed to it; one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from forebay_producer.client.results_reader import ResultsReader
from forebay_producer.cluster.backlog import BacklogReader, Sample
from forebay_producer.dead_letters.audit import AuditIndex, Turns
from forebay_producer.dead_letters.letter import SAMPLES_MAX, Letter
from forebay_producer.dead_letters.replay_plan import Refusal, Replay, plan_replay
from forebay_producer.dead_letters.runs.canary import Canary
from forebay_producer.dead_letters.runs.lease import Run
from forebay_producer.dead_letters.runs.pace import BacklogFollower, Load, RateLimit
from forebay_producer.dead_letters.runs.replayer import BATCH_BYTES_MAX, BATCH_LETTERS_MAX, Replayer
from forebay_producer.dead_letters.selection import Selection
from forebay_producer.dead_letters.state import was_replayed
from forebay_schemas.clock import Clock
from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import BrokerUnreachableError

LOOK_SECONDS: Final = 1.0
"""Interval of backlog samples."""

_PAUSE_SECONDS: Final = 0.1
_RESULTS_SECONDS: Final = 0.2


@dataclass(slots=True)
class Tally:
    """Counts of a run. ``planned``: replays by topic. ``already``: replayed before.

    ``not_found``: ids of the selection that no letter matched so far.
    """

    matched: int = 0
    already: int = 0
    discarded: int = 0
    replayed: int = 0
    planned: Counter[str] = field(default_factory=Counter)
    refused: Counter[Refusal] = field(default_factory=Counter)
    refused_ids: dict[Refusal, list[str]] = field(default_factory=dict)
    not_found: set[str] = field(default_factory=set)

    def refuse(self, letter: Letter, refusal: Refusal) -> None:
        """Counts a letter that cannot be replayed."""
        self.refused[refusal] += 1
        samples = self.refused_ids.setdefault(refusal, [])
        if len(samples) < SAMPLES_MAX:
            samples.append(letter.name)

    def hand_over(self, replay: Replay) -> None:
        """Counts a planned replay that another run has made or discarded."""
        self.planned -= Counter([replay.topic])
        self.already += 1

    def counts(self) -> dict[str, int]:
        """The counts, as recorded in the audit."""
        counts = {
            "matched": self.matched,
            "replayed": self.replayed,
            "already_replayed": self.already,
            "discarded": self.discarded,
        }
        return counts | {f"refused_{refusal.code}": count for refusal, count in self.refused.items()}


class Planner:
    """Decides which letters of a selection are replayed; counts all in ``tally``."""

    def __init__(
        self,
        *,
        selection: Selection,
        pool: Pool,
        clock: Clock,
        topic_id: str,
        handled: AuditIndex,
        ttl_ms: int | None,
        replays_max: int,
        limit: int | None,
        tier_times: TierTimes,
    ) -> None:
        self._selection = selection
        self._pool = pool
        self._clock = clock
        self._topic_id = topic_id
        self._handled = handled
        self._ttl_ms = ttl_ms
        self._replays_max = replays_max
        self._limit = limit
        self.tier_times = tier_times
        self._planned = Turns()
        self.tally = Tally(not_found=set(selection.ids))

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.tally.planned.total() >= self._limit

    def plan(self, letter: Letter) -> Replay | None:
        """The replay of this letter, if there is one."""
        tally = self.tally
        if not self._selection.matches(letter):
            return None
        if tally.not_found:
            tally.not_found -= letter.is_called(self._selection.ids)
        tally.matched += 1
        if was_replayed(letter, self._handled) or self._planned.has(letter.request_id, letter.replay_count + 1):
            tally.already += 1
            return None
        if self._handled.was_discarded(letter.partition, letter.offset):
            tally.discarded += 1
            return None
        plan = plan_replay(
            letter,
            pool=self._pool,
            topic_id=self._topic_id,
            now_ms=self._clock.wall_ms(),
            ttl_ms=self._ttl_ms,
            replays_max=self._replays_max,
            default_ttl_ms=self.tier_times.ttl_ms,
        )
        if isinstance(plan, Refusal):
            tally.refuse(letter, plan)
            return None
        tally.planned[plan.topic] += 1
        self._planned.add(plan.request_id, plan.replay_count)
        return plan


class ReplayJob:
    """Sends the planned replays. ``canary``: how many are sent first. ``results``: the reader of their outcomes; None
    without.

    ``interrupted``: whether to stop. ``show``: receives the progress. ``tell``: receives permanent lines.
    """

    def __init__(
        self,
        *,
        run: Run,
        replayer: Replayer,
        planner: Planner,
        backlog: BacklogReader,
        results: ResultsReader | None,
        canary: int,
        rate_per_second: float,
        clock: Clock,
        interrupted: Callable[[], bool],
        show: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._run = run
        self._replayer = replayer
        self._planner = planner
        self._backlog = backlog
        self._results = results
        self._canary_due = canary
        self._clock = clock
        self._interrupted = interrupted
        self._show = show
        self._tell = tell
        now = clock.monotonic()
        self._rate = RateLimit(per_second=rate_per_second, now=now)
        self._follower = BacklogFollower(planner.tier_times)
        self._look_at = now
        self._batch_letters = max(1, min(BATCH_LETTERS_MAX, int(rate_per_second / 2)))
        self._waiting_since: float | None = None
        self._told_full = False
        self.canary = Canary()

    def replay(self, letters: Iterable[Letter]) -> None:
        """Replays all letters up to the limit, until it is interrupted or the canary fails.

        Raises errors that stop it. The counts are correct in each case.
        """
        tally = self._planner.tally
        pending: list[Replay] = []
        pending_bytes = 0
        stopped = False
        for letter in letters:
            self._run.tick()
            stopped = self._interrupted() or self._planner.is_full
            if stopped:
                break
            replay = self._planner.plan(letter)
            if replay is None:
                continue
            pending.append(replay)
            pending_bytes += len(replay.value)
            full = len(pending) >= self._batch_letters or pending_bytes >= BATCH_BYTES_MAX
            if full or len(pending) == self._canary_due:
                self._send(pending)
                pending, pending_bytes = [], 0
                if self.canary.failed:
                    stopped = True
                    break
        if pending and not self._interrupted() and not self.canary.failed:
            self._send(pending)
        if self._canary_due and self.canary.sent and not self._interrupted():
            self._await_canary()
        if stopped:
            # It has not seen all letters.
            tally.not_found.clear()

    def _send(self, pending: list[Replay]) -> None:
        while pending and not self._interrupted():
            count = self._may_go(pending)
            if not count:
                self._run.tick()
                wait_seconds = self._rate.seconds_until(len(pending))
                self._clock.sleep(min(wait_seconds or _PAUSE_SECONDS, _PAUSE_SECONDS))
                continue
            batch, pending = pending[:count], pending[count:]
            sent = self._replayer.send(batch)
            tally = self._planner.tally
            self._rate.spend(len(batch))
            tally.replayed += len(sent.replayed)
            for replay in sent.by_others:
                tally.hand_over(replay)
            for replay, refusal in sent.refused:
                tally.refuse(replay.letter, refusal)
            now = self._clock.monotonic()
            for replay in sent.replayed:
                self._follower.sent(replay.tier)
                if self._canary_due:
                    self.canary.add(replay, now=now)
            if self._canary_due:
                self._canary_due -= len(sent.replayed)
                if not self._canary_due:
                    self._await_canary()
            self._show(self._so_far())

    def _may_go(self, pending: list[Replay]) -> int:
        """How many of the first ones may be sent now."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._observe()
        if self._rate.allows(now) < len(pending):
            # Whole batches: each has an intent and audit records.
            self._waiting_since = None
            return 0
        room: dict[Tier, int] = {}
        count = 0
        for replay in pending:
            if replay.tier not in room:
                room[replay.tier] = self._follower.room(replay.tier, ttl_seconds=replay.ttl_ms / 1000)
            if room[replay.tier] <= 0:
                break
            room[replay.tier] -= 1
            count += 1
        if count:
            self._waiting_since = None
        else:
            self._say_why(pending[0].tier, now)
        return count

    def _observe(self) -> None:
        try:
            sample = self._backlog.sample()
            if self._follower.stands_still(_finished(sample)):
                sample, _ = self._backlog.looked_at(sample)
        except BrokerUnreachableError:
            # The next batch shows whether they are really unreachable.
            return
        finally:
            self._look_at = self._clock.monotonic() + LOOK_SECONDS
        self._follower.observe(
            Load(
                at_seconds=sample.at_seconds,
                waiting={tier: sum(max(0, one.waiting - one.running) for one in sample.tiers[tier]) for tier in TIERS},
                finished=_finished(sample),
            )
        )

    def _say_why(self, tier: Tier, now: float) -> None:
        why = self._follower.why_full(tier)
        if self._waiting_since is None:
            self._waiting_since = now
            self._told_full = False
        if not self._told_full and self._follower.knows_why and now - self._waiting_since > LOOK_SECONDS:
            self._told_full = True
            self._tell(f"waiting: {why}")
        self._show(f"{self._so_far()}; waiting: {why}")

    def _await_canary(self) -> None:
        assert self._results is not None
        self._canary_due = 0
        while self.canary.waits_for and not self._interrupted():
            self._run.tick()
            found = self._results.read(timeout_seconds=_RESULTS_SECONDS)
            self.canary.take((one.result for one in found), now=self._clock.monotonic())
            self._show(f"canary: {self.canary.waits_for:,} of {self.canary.sent:,} without an outcome yet")

    def _so_far(self) -> str:
        tally = self._planner.tally
        return f"{tally.replayed:,} replayed, {tally.matched:,} looked at"


def _finished(sample: Sample) -> int:
    return sum(one.done for tier in TIERS for one in sample.tiers[tier])
