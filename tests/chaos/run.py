"""One run from its parts to its report: starts all, plays the plan, waits for what is left, reads and counts."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos.acts import make_acts
from chaos.cluster import create_topics, running_cluster
from chaos.commands import Commands
from chaos.commit_watch import CommitLog
from chaos.conductor import Conductor
from chaos.facts import CommandRun, End, Facts, PartitionKey, RunError, Trouble
from chaos.ledger import Ledger, make_ledger
from chaos.ledger_letters import LetterAccount, account_letters
from chaos.ledger_orders import OrderAccount, account_orders
from chaos.load import FLAWS_OF_ENGINE, TOKEN_SECONDS, Flaw, Load, Mix
from chaos.on_call import OnCall
from chaos.plan import BROKERS, Plan
from chaos.reading import (
    read_asked,
    read_audit,
    read_executions,
    read_letters,
    read_outcomes,
    read_owner_changes,
    read_records,
)
from chaos.services import Services
from chaos.stalls import Stall, find_stalls
from chaos.workers import Workers, now_ms
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.topics import Pool
from forebay_schemas.kafka.configs import consumer_config
from forebay_schemas.kafka.connection import KafkaConnection

_PARTITIONS = 6
_MIX = Mix(
    per_second=22.0,
    work_seconds=(0.05, 3.0),
    ttl_ms={900_000: 90, 90_000: 7, 4_000: 3},
    twice_share=0.01,
    junk_share=0.004,
    flawed_share={
        Flaw.FAILS_AT_TIMES: 0.03,
        Flaw.HANGS_AT_TIMES: 0.004,
        Flaw.WRONG_MODEL: 0.01,
        Flaw.WRONG_BIZ_TYPE: 0.005,
    },
)
_START_SECONDS_MAX = 120.0
_DRAIN_SECONDS_MAX = 240.0
_STILL_SECONDS_MAX = 75.0
"""Time without a commit after which none will come: the longest retry delay is 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of a run. ``letters_shown``: numbers of open, replayed and discarded dead letters in the command's
    output. ``unfinished``: records beyond the commits at the end."""

    plan: Plan
    folder: Path
    faults: dict[str, int]
    facts: Facts
    ledger: Ledger
    letters: LetterAccount
    letters_shown: dict[str, int]
    orders: OrderAccount
    orders_failed: list[str]
    commands: list[CommandRun]
    stalls: list[Stall]
    unfinished: dict[PartitionKey, int]
    steps_back: list[str]
    damaged_commits: list[str]


def run_plan(plan: Plan, *, folder: Path | None = None) -> Report:
    """Takes the plan's time and about a minute more. Logs stay in ``folder``, a new temporary one by default."""
    folder = folder or Path(tempfile.mkdtemp(prefix=f"forebay-chaos-{plan.seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    engine_log = folder / "engine.jsonl"
    # A step takes the same however many run: the load, not the batch, says how long a request takes.
    physics = EnginePhysics(a_seconds=TOKEN_SECONDS, b_seconds=0.0, c_seconds=0.0)
    pool = Pool(f"chaos-{secrets.token_hex(4)}")
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(folder))
        create_topics(cluster.kafka, pool, partitions=_PARTITIONS, replication=BROKERS)
        engine = stack.enter_context(running_engine(physics=physics, log_path=engine_log, seed=plan.seed))
        workers = Workers(
            folder=folder,
            settings={
                "FOREBAY_POOL": pool.name,
                "FOREBAY_BACKEND_URL": engine.url,
                # One worker alone can bear the load: a lower tier that waits for higher ones would look like a stall.
                "FOREBAY_LIMIT_MAX": "48",
                "FOREBAY_BACKEND_TIMEOUT_SECONDS": "8",
                "FOREBAY_DRAIN_SECONDS": "12",
            },
        )
        stack.callback(workers.kill_all)
        conductor = Conductor(cluster=cluster, engine=engine, workers=workers)
        commits = stack.enter_context(CommitLog(cluster.kafka, pool))
        conductor.say(f"logs are in {folder}")
        for slot in plan.slots_at_start:
            conductor.start_worker(slot)
        if not conductor.wait(workers.all_work, seconds=_START_SECONDS_MAX):
            raise RunError(f"the workers do not start; see their logs in {folder}")
        engine.faults(*FLAWS_OF_ENGINE)
        acts = make_acts(seed=plan.seed, seconds=plan.seconds, faults=plan.faults)
        commands = Commands(cluster.kafka, pool, folder=folder)
        on_call = OnCall(cluster.kafka, pool, commands=commands, handles=acts.handles)
        load = Load(cluster.kafka, pool, _MIX, seed=plan.seed)
        services = Services(cluster.kafka, pool, orders=acts.orders, load=load, commands=commands)
        with on_call, services, load:
            conductor.play(plan)
        conductor.say(f"all is mended; {len(load.accepted)} accepted; waiting for what is left")
        unfinished = _drain(conductor, commits, workers, plan)
        conductor.say("ending the workers")
        end_ms = now_ms()
        workers.end_all()
        states = on_call.states()
        replayed, discarded = read_audit(cluster.kafka, pool)
        facts = Facts(
            accepted=frozenset(load.accepted),
            undecodable=frozenset(load.junk),
            records=tuple(read_records(cluster.kafka, pool)),
            outcomes=tuple(read_outcomes(cluster.kafka, pool)),
            letters=tuple(read_letters(cluster.kafka, pool)),
            executions=tuple(read_executions(engine_log)),
            lives=tuple(workers.lives),
            windows=tuple(conductor.windows),
            commits=commits.seen,
            end_ms=end_ms,
            replayed=tuple(replayed),
            discarded=tuple(discarded),
            asked=tuple(read_asked(cluster.kafka, pool, services.answers)),
            owner_changes=tuple(
                change
                for life in workers.lives
                for change in read_owner_changes(life.worker, workers.log_path(life.worker))
            ),
        )
    return Report(
        plan=plan,
        folder=folder,
        faults={kind.value: count for kind, count in conductor.carried_out.items()},
        facts=facts,
        ledger=make_ledger(facts),
        letters=account_letters(facts),
        letters_shown=states,
        orders=account_orders(facts),
        orders_failed=services.failed,
        commands=commands.runs,
        stalls=find_stalls(facts, _brokers_down(facts), session_ms=_session_ms()),
        unfinished=unfinished,
        steps_back=commits.steps_back,
        damaged_commits=commits.damaged,
    )


def _drain(conductor: Conductor, commits: CommitLog, workers: Workers, plan: Plan) -> dict[PartitionKey, int]:
    """Waits until all is committed; what is not in the end."""
    for slot in plan.slots_at_start:
        if workers.of_slot(slot) is None:
            conductor.start_worker(slot)
    left = commits.unfinished()
    changed_ms, end_ms = now_ms(), now_ms() + int(_DRAIN_SECONDS_MAX * 1000)
    while left != {} and now_ms() < end_ms and now_ms() - changed_ms < _STILL_SECONDS_MAX * 1000:
        conductor.wait(lambda: False, seconds=1.0)
        before, left = left, commits.unfinished()
        if left != before:
            changed_ms = now_ms()
    if left is None:
        raise RunError("the brokers do not say how far their partitions reach")
    return left


def _brokers_down(facts: Facts) -> list[tuple[int, int]]:
    return [
        (window.start_ms, facts.end_ms if window.end_ms is None else window.end_ms)
        for window in facts.windows
        if window.trouble is Trouble.BROKER or window.cuts_all
    ]


def _session_ms() -> int:
    """Silence after which the workers' groups give up a member."""
    connection = KafkaConnection(bootstrap_servers="unused:9092", properties={})
    return int(consumer_config(connection, client_id="chaos", group="chaos")["session.timeout.ms"])


def unclean_ends(facts: Facts) -> list[str]:
    """Workers that ended otherwise than by order."""
    return [
        f"{life.worker}: exit code {life.exit_code}"
        for life in facts.lives
        if life.end is End.CRASHED or (life.end is End.TERMINATED and life.exit_code != 0)
    ]
