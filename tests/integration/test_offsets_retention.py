"""Commits that the brokers delete, as they do for a group that had no member for `offsets.retention.minutes`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forebay_schemas.contract.tiers import TIERS, Tier
from harness.dead_letters import command_of
from harness.doctor import Case, examine_all
from harness.gate import HANDLER, Gate
from harness.live_pool import envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.local import LocalKafka
    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

ANSWER_SECONDS_MAX = 30.0


def forget_commits(pool: LivePool) -> None:
    """Deletes the commits, as brokers do when a group had no member for long; they refuse it while it has some."""
    groups = [*(pool.topics.group(tier) for tier in TIERS), pool.topics.retry_group]
    admin = pool.kafka.admin()  # must outlive what it was asked
    for deleted in admin.delete_consumer_groups(groups, request_timeout=ANSWER_SECONDS_MAX).values():
        deleted.result(ANSWER_SECONDS_MAX)


def test_what_has_its_outcome_is_not_run_again_when_the_brokers_have_forgotten_the_commits(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=2), Gate(tmp_path)
    done = pool.submit(Tier.LOW, *(envelope(f"done-{n}", payload=gate.noted()) for n in range(20)))
    retried = pool.submit(Tier.MID, *(envelope(f"retried-{n}", payload={"do": "raise"}) for n in range(2)))
    first = new_worker(pool, handler=HANDLER, max_retries=1)
    pool.results([*done, *retried])
    first.terminate()
    forget_commits(pool)
    waiting = pool.submit(Tier.LOW, *(envelope(f"waiting-{n}", payload=gate.noted()) for n in range(5)))
    worker = new_worker(pool, handler=HANDLER, max_retries=1)
    pool.results(waiting)

    def is_all_committed() -> bool:
        ends = {Tier.LOW: 25, Tier.MID: 2}
        return all(
            sum(pool.kafka.committed(pool.topics.group(tier), pool.topics.requests(tier)).values()) == end
            for tier, end in ends.items()
        )

    wait_until("all of it committed again", is_all_committed)
    assert {gate.starts()[one] for one in [*done, *waiting]} == {1}
    assert any(event["event"].startswith("a partition that is not empty has no commit") for event in worker.events())
    wait_until("the retries settled", lambda: worker.metric("forebay_settled_total") == 24)
    pool.ended()
    assert {len(pool.all_results(one)) for one in [*done, *retried, *waiting]} == {1}


def test_a_retention_below_what_may_wait_is_told_by_doctors_topics_create_and_workers(
    brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker
) -> None:
    pool = new_pool(brisk_kafka, partitions=1)
    settings = {
        "FOREBAY_BOOTSTRAP_SERVERS": brisk_kafka.bootstrap_servers,
        "FOREBAY_POOL": pool.name,
        "FOREBAY_HANDLER": HANDLER,
        "FOREBAY_GPU": "none",
    }
    words = ("offsets.retention.minutes is 1440", "set offsets.retention.minutes of the brokers to 10080")
    worker = new_worker(pool, handler=HANDLER, gpu="none")
    for package in ("forebay_producer", "forebay_worker"):
        [examined] = examine_all(package, {"one": Case(settings=settings)}).values()
        assert examined.code == 0
        assert examined.status("kafka.offsets_retention") == "warning"
        assert all(each in examined.text("kafka.offsets_retention") for each in words)
    created = command_of(pool).run("topics", "create")
    assert created.code == 0
    assert all(each in created.err for each in words)
    [told] = [event for event in worker.events() if event["event"] == "commits may be deleted before requests"]
    assert words[0] in told["problem"]
    assert words[1] in told["fix"]
