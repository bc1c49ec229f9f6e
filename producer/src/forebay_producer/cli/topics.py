"""`forebay topics`: create the topics of a pool or of a front, and show them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from forebay_producer.cli.common import Session, command, say, to_json
from forebay_producer.cli.tables import Column, print_table
from forebay_producer.cluster.topic_admin import TopicAdmin, TopicState
from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import TopicSpec
from forebay_schemas.errors import ExitCode, TopicMissingError, UsageError
from forebay_schemas.kafka import offsets_retention
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable

app = typer.Typer(no_args_is_help=True, help="Create the topics of a pool or a front, and show them.")


def add_to(all_commands: typer.Typer) -> None:
    """Adds the group."""
    all_commands.add_typer(app, name="topics")


_FrontName = Annotated[
    str | None,
    typer.Option(
        "--front", metavar="NAME", help="The topics of this front (FOREBAY_FRONT of its clients), not a pool's."
    ),
]

_COLUMNS = {
    column.name: column
    for column in (
        Column(name="topic"),
        Column(name="partitions", is_number=True),
        Column(name="replication", is_number=True, leave_out=2),
        Column(name="records", is_number=True),
        Column(name="settings", may_be_cut=True, leave_out=3),
        Column(name="drift", may_be_cut=True),
    )
}


@command(app, "create")
def create(
    session: Session,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(help="Partitions of each request topic: the most workers that can share a tier. [default: 12]"),
    ] = None,
    replication: Annotated[
        int | None, typer.Option(help="Replicas of every topic. [default: 3, or 1 with fewer than 3 brokers]")
    ] = None,
    front: _FrontName = None,
) -> None:
    """Create the pool's topics, or those of a front. Existing topics are not changed; their differences are shown."""
    admin = _topic_admin(session)
    specs = _specs(session, admin, front=front, partitions=partitions, replication=replication)
    before = admin.look_at(specs)
    created = admin.create([spec for spec in specs if spec.name not in before])
    after = admin.look_at(specs)
    records: list[dict[str, Any]] = [
        {"topic": name, "state": "created" if name in created else "exists", **_shown(state)}
        for name, state in after.items()
    ]
    _print(session, records, columns=("topic", "state", "partitions", "replication", "drift"))
    drifted = sum(bool(record["drift"]) for record in records)
    if drifted:
        say(f"warning: {drifted} topics differ from what they should be; nothing was changed in them")
    minutes = admin.offsets_retention_minutes()
    if minutes is not None and (said := offsets_retention.shortfall(minutes)) is not None:
        say(f"warning: {said}; {offsets_retention.FIX}")


@command(app, "describe")
def describe(session: Session, *, front: _FrontName = None) -> None:
    """Show the topics of the pool, or of a front: partitions, replicas, settings, records.

    Exits 1 when one is missing.
    """
    admin = _topic_admin(session)
    specs = _specs(session, admin, front=front, partitions=None, replication=None)
    found = admin.look_at(specs)
    counts = admin.count_records(found.values())
    records: list[dict[str, Any]] = []
    for spec in specs:
        state = found.get(spec.name)
        if state is None:
            gone: dict[str, Any] = {
                "partitions": None,
                "replication": None,
                "settings": {},
                "drift": [],
                "records": None,
            }
            records.append({"topic": spec.name, "state": "missing", **gone})
        else:
            shown = {**_shown(state), "settings": state.settings, "records": counts[spec.name]}
            records.append({"topic": spec.name, "state": "exists", **shown})
    columns = ("topic", "state", "partitions", "replication", "records", "settings", "drift")
    _print(session, records, columns=columns)
    missing = [spec.name for spec in specs if spec.name not in found]
    if missing:
        sys.stdout.flush()
        if front is not None:
            say(f"error: missing topic {missing[0]}; create it with: forebay topics create --front {front}")
        else:
            say(f"error: {TopicMissingError(missing, pool=session.pool.name)}")
        raise typer.Exit(ExitCode.FAILED)


def _topic_admin(session: Session) -> TopicAdmin:
    return TopicAdmin(make_admin(session.connection, client_id="forebay"), connection=session.connection)


def _specs(
    session: Session, admin: TopicAdmin, *, front: str | None, partitions: int | None, replication: int | None
) -> list[TopicSpec]:
    if front is not None:
        if partitions is not None:
            raise UsageError("--partitions", "came with --front", fix="leave it out: a front's topic has one partition")
        topics = _front(front)
        shape = admin.shape([topics.presence], partitions=None, replication=replication)
        return topics.specs(replication=shape.replication)
    requests = [session.pool.requests(tier) for tier in TIERS]
    shape = admin.shape(requests, partitions=partitions, replication=replication)
    return session.pool.specs(partitions=shape.partitions, replication=shape.replication)


def _front(name: str) -> Front:
    try:
        return Front(name)
    except UsageError as error:
        raise UsageError("--front", f"{shown(name)} is no name of a front", fix=error.fix) from None


def _shown(state: TopicState) -> dict[str, Any]:
    return {
        "partitions": state.partitions,
        "replication": state.replication,
        "drift": [msgspec.to_builtins(drift) for drift in state.drift],
    }


def _print(session: Session, records: list[dict[str, Any]], *, columns: tuple[str, ...]) -> None:
    if session.output is Output.JSON:
        for record in records:
            sys.stdout.write(to_json(record) + "\n")
        return
    print_table(
        [_COLUMNS.get(name, Column(name=name)) for name in columns],
        [tuple(_cell(record[name]) for name in columns) for record in records],
    )


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return printable(" ".join(f"{name}={setting}" for name, setting in value.items()))
    if isinstance(value, list):
        return printable("; ".join(f"{one['setting']} is {one['actual']}, should be {one['wanted']}" for one in value))
    return "-" if value is None else printable(str(value))
