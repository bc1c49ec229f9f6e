"""The ACLs of docs/security.md, read from its table: they are enough for everything, and each one is needed.

The broker allows nothing that no ACL allows; worker and client come as SCRAM users without any other right.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from forebay_schemas.contract.tiers import Tier
from harness.exporter_process import running_exporter
from harness.gate import HANDLER, Gate
from harness.live_pool import LivePool, envelope
from harness.locked_down import documented_acls, forebay_as, grant_roles, write_properties
from harness.waiting import wait_until
from harness.worker_process import WorkerProcess, run_worker_command
from harness.workers import running_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay_sandbox.testing.kafka_secure import Acl, SecureKafka
    from forebay_schemas.kafka.connection import KafkaConnection
    from harness.forebay_command import ForebayCommand

pytestmark = pytest.mark.slow

WORKER, CLIENT, EXPORTER = "forebay-worker", "forebay-client", "forebay-exporter"
CLIENT_ROLES = (
    "forebay submit",
    "forebay results",
    "forebay backlog",
    "forebay cancel, expedite",
    "a client that streams",
    "forebay dead-letters",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permitted:
    """A pool whose worker and client have exactly what the table says."""

    secure: SecureKafka
    pool: LivePool
    folder: Path
    worker_connection: KafkaConnection
    forebay: ForebayCommand
    worker_acls: list[Acl]

    def worker_settings(self) -> dict[str, Any]:
        file = write_properties(self.folder / "worker.properties", self.worker_connection)
        return {
            "bootstrap_servers": self.worker_connection.bootstrap_servers,
            "kafka_properties": str(file),
            "handler": HANDLER,
            "limit_max": "4",
            "max_retries": "1",
        }


@pytest.fixture(scope="module")
def permitted(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Permitted]:
    secure, folder = secure_kafka, tmp_path_factory.mktemp("permitted")
    for user in (WORKER, CLIENT, EXPORTER):
        secure.set_password(user, f"{user}-pw")
    with closing(LivePool(secure.kafka, partitions=1)) as pool:
        worker_acls = grant_roles(secure, "forebay-worker", pool=pool.name, principal=f"User:{WORKER}")
        grant_roles(secure, *CLIENT_ROLES, pool=pool.name, principal=f"User:{CLIENT}")
        yield Permitted(
            secure=secure,
            pool=pool,
            folder=folder,
            worker_connection=secure.scram(WORKER, f"{WORKER}-pw"),
            forebay=forebay_as(secure.scram(CLIENT, f"{CLIENT}-pw"), pool=pool.name, folder=folder),
            worker_acls=worker_acls,
        )


@pytest.fixture
def worker(permitted: Permitted, tmp_path: Path) -> Iterator[WorkerProcess]:
    with running_workers(tmp_path) as new_worker:
        yield new_worker(permitted.pool, **permitted.worker_settings())


def line(request_id: str, do: str, **more: object) -> bytes:
    return (json.dumps(envelope(request_id, payload={"do": do}, **more)) + "\n").encode()


def test_the_documented_acls_are_enough_for_everything_but_topics_create(
    permitted: Permitted, worker: WorkerProcess
) -> None:
    forebay = permitted.forebay
    done = forebay.run("submit", "-", "--wait", stdin=line("good", "answer"))
    assert done.code == 0, done.err
    assert done.records[0]["status"] == "completed"
    done = forebay.run("submit", "-", "--wait", stdin=line("bad", "raise", max_attempts=2))
    assert done.records, done.err
    assert done.records[0]["status"] == "failed"
    assert done.records[0]["attempt"] == 2
    done = forebay.run("results", "--id", "good", "--output", "json")
    assert (done.code, len(done.records)) == (0, 1), done.err
    for command in (
        ("backlog",),
        ("dead-letters", "list"),
        ("dead-letters", "show", "bad"),
        ("dead-letters", "replay", "--id", "bad"),
        ("dead-letters", "replay", "--id", "bad", "--yes"),
    ):
        done = forebay.run(*command)
        assert done.code == 0, (command, done.err)
    for command in (("cancel", "good", "--wait", "0"), ("expedite", "good", "--wait", "0")):
        done = forebay.run(*command)
        assert done.code == 0, (command, done.err)
    done = forebay.run("cancel", "good", "--wait", "1")
    assert "denied" not in done.err, "it may hear what workers answer"
    done = forebay.run("doctor", "--output", "json")
    assert done.code == 0, done.err
    assert {record["status"] for record in done.records} <= {"ok", "skipped"}, done.records
    status, said = worker.get("/readyz")
    assert status == 200, said
    done = forebay.run("topics", "create")
    assert (done.code, f"User:{CLIENT} may not" in done.err) == (1, True), done.err
    assert f"topic forebay.{permitted.pool.name}." in done.err


def test_who_may_only_look_is_told_what_a_submission_needs(permitted: Permitted, tmp_path: Path) -> None:
    user, pool = "forebay-onlooker", permitted.pool.name
    permitted.secure.set_password(user, f"{user}-pw")
    grant_roles(permitted.secure, "forebay results", "forebay backlog", pool=pool, principal=f"User:{user}")
    forebay = forebay_as(permitted.secure.scram(user, f"{user}-pw"), pool=pool, folder=tmp_path)
    done = forebay.run("submit", "-", stdin=line("refused", "answer"))
    assert done.code == 1, done.err
    assert f"User:{user} may not Write topic forebay.{pool}.requests." in done.err, done.err
    done = forebay.run("cancel", "refused")
    assert done.code == 1, done.err
    assert f"User:{user} may not " in done.err, done.err
    done = forebay.run("dead-letters", "discard", "--reason", "backend_error", "--yes")
    assert done.code == 1, done.err
    assert f"User:{user} may not " in done.err, done.err


def test_a_worker_that_lacks_one_of_them_names_it_at_the_start(permitted: Permitted) -> None:
    settings = {f"FOREBAY_{name.upper()}": value for name, value in permitted.worker_settings().items()}
    settings["FOREBAY_POOL"] = permitted.pool.name
    del settings["FOREBAY_HANDLER"]
    settings["FOREBAY_BACKEND_URL"] = "http://127.0.0.1:1"
    for acl in permitted.worker_acls:
        if acl.name.endswith(".streams"):
            continue  # a worker runs without it
        permitted.secure.take_away(acl)
        try:
            ended = run_worker_command(settings)
        finally:
            permitted.secure.allow(acl)
        last = ended.stderr.splitlines()[-1]
        assert ended.exit_code == 1, (acl, ended.stderr)
        assert f"User:{WORKER} may not " in last, (acl, ended.stderr)
        assert f"{acl.operation} {acl.resource.lower()} {acl.name}" in last, (acl, ended.stderr)


def test_a_client_that_lacks_one_of_them_is_told_which(permitted: Permitted) -> None:
    commands: dict[tuple[str, str, str], tuple[str, ...]] = {
        ("forebay submit", "Write", "requests."): ("submit", "-"),
        ("forebay results", "Read", "results"): ("results",),
        ("forebay backlog", "Describe", ""): ("backlog",),
        ("forebay cancel, expedite", "Write", "control"): ("cancel", "x", "--wait", "0"),
        ("forebay dead-letters", "Read", "dead-letter"): ("dead-letters", "list"),
    }
    pool = permitted.pool.name
    for (role, operation, name), command in commands.items():
        acls = {
            acl
            for one in CLIENT_ROLES
            for acl in documented_acls(one, pool=pool, principal=f"User:{CLIENT}")
            if acl.name == f"forebay.{pool}.{name}" and acl.resource == ("Group" if not name else "Topic")
        }
        assert any(acl.operation == operation for acl in acls), role
        permitted.secure.take_away(*acls)
        try:
            done = permitted.forebay.run(*command, stdin=line("refused", "answer"))
        finally:
            permitted.secure.allow(*acls)
        assert done.code == 1, (role, done.err)
        kind = "topic" if name else "group"
        assert f"User:{CLIENT} may not {operation} {kind} forebay.{pool}.{name}" in done.err, (role, done.err)


def test_an_exporter_needs_what_the_table_says_and_names_what_it_lacks(
    permitted: Permitted, worker: WorkerProcess, tmp_path: Path
) -> None:
    secure, pool = permitted.secure, permitted.pool
    acls = grant_roles(secure, "forebay exporter", pool=pool.name, principal=f"User:{EXPORTER}")
    forebay = forebay_as(secure.scram(EXPORTER, f"{EXPORTER}-pw"), pool=pool.name, folder=tmp_path)
    gate = Gate(permitted.folder)
    pool.submit(Tier.MID, *(envelope(f"exported-{number}", payload=gate.payload()) for number in range(6)))
    with running_exporter(forebay) as exporter:

        def said(words: str) -> bool:
            return words in exporter.get("/readyz")[1]

        wait_until("the backlog", lambda: exporter.metric("forebay_backlog_records", tier="mid") == 6)
        wait_until("the worker", lambda: exporter.metric("forebay_workers") == 1)
        assert worker.status()["in_flight_requests"] == 4
        assert exporter.metric("forebay_oldest_age_seconds", tier="mid")
        lacking = {
            (acl.operation, acl.resource, acl.name): acl
            for acl in acls
            if acl.resource == "Topic" and acl.name.endswith(("coordination", "requests.", "dead-letter"))
        }
        assert len(lacking) == 3
        for (operation, _, name), acl in lacking.items():
            secure.take_away(acl)
            try:
                words = f"User:{EXPORTER} may not {operation} topic {name}"
                wait_until(words, partial(said, words))
                assert exporter.metric("forebay_exporter_up") == 0
            finally:
                secure.allow(acl)
            wait_until("a pool that is read", lambda: exporter.metric("forebay_exporter_up") == 1)
    gate.open()


def test_permissions_taken_from_a_running_worker_are_named_and_nothing_is_lost(
    permitted: Permitted, worker: WorkerProcess
) -> None:
    secure, pool = permitted.secure, permitted.pool
    gate = Gate(permitted.folder)
    noted = gate.noted()

    def readiness() -> str:
        status, said = worker.get("/readyz")
        return said if status == 503 else ""

    for number, (operation, kind, name, words) in enumerate(
        [
            ("Read", "Topic", "requests.", f"Read topic {pool.topics.requests(Tier.MID)}"),
            ("Write", "Topic", "results", f"Write topic {pool.topics.results}"),
            ("Read", "Group", "", f"Read group forebay.{pool.name}."),
            ("Read", "Topic", "coordination", f"Read topic {pool.topics.coordination}"),
            ("Read", "Topic", "control", f"Read topic {pool.topics.control}"),
        ]
    ):
        acls = [
            acl
            for acl in permitted.worker_acls
            if (acl.operation, acl.resource, acl.name) == (operation, kind, f"forebay.{pool.name}.{name}")
        ]
        assert len(acls) == 1
        secure.take_away(*acls)
        try:
            ids = pool.submit(Tier.MID, *(envelope(f"kept-{number}-{n}", payload=noted) for n in range(5)))
            expected = f"User:{WORKER} may not {words}"
            wait_until(f"a worker that says {expected}", lambda: expected in readiness())  # noqa: B023
        finally:
            secure.allow(*acls)
        assert {result.status for result in pool.results(ids).values()} == {"completed"}
        wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)
    assert worker.get("/livez")[0] == 200
