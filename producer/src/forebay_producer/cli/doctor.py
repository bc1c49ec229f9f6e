"""`forebay doctor`: checks that this machine can submit requests to a pool and read their outcomes."""

from __future__ import annotations

import sys

import typer

from forebay_producer.cli.common import Session, command, say
from forebay_schemas.doctor.findings import exit_code, findings_json, findings_text, summary
from forebay_schemas.doctor.kafka import KafkaDoctor
from forebay_schemas.doctor.needs import Role
from forebay_schemas.doctor.registry import check_registry
from forebay_schemas.errors import ExitCode
from forebay_schemas.runtime.output import Output


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "doctor")(doctor)


def doctor(session: Session) -> None:
    """Check connection, credentials, topics and their settings, permissions, clock and registry.

    Exits 1 when a check failed, 3 when no broker can be reached; warnings exit 0.
    """
    registry = session.settings.schema_registry()
    findings = KafkaDoctor(
        session.connection,
        pool=session.pool,
        role=Role.PRODUCER,
        tier_times=session.settings.tier_times(),
        front=session.settings.front_topics(),
    ).run()
    findings.append(check_registry(registry))
    show = findings_json if session.output is Output.JSON else findings_text
    sys.stdout.write(show(findings) + "\n")
    sys.stdout.flush()
    say(summary(findings))
    code = exit_code(findings)
    if code is not ExitCode.OK:
        raise typer.Exit(code)
