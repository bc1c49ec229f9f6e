"""Credentials that change while a worker and a client run: no restart, and nothing lost."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from forebay_producer import Producer
from forebay_sandbox.testing.kafka_secure import secure_kafka
from forebay_schemas.contract.tiers import Tier
from harness.gate import HANDLER, Gate
from harness.live_pool import LivePool, envelope
from harness.locked_down import grant_roles, write_properties
from harness.waiting import PATIENCE_SECONDS, wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.kafka.access import KafkaAccess
    from forebay_sandbox.testing.kafka_secure import SecureKafka
    from harness.worker_process import WorkerProcess

pytestmark = pytest.mark.slow

USER, OLD, NEW = "rotating", "old-password", "new-password"
REAUTHENTICATE_MS = 3_000


def hold_rotation(secure: SecureKafka, worker: WorkerProcess, secret: Path) -> None:
    """The brokers take the new password only; the worker is refused, says so, and is told the new one at last."""
    secure.set_password(USER, NEW)

    def refused() -> bool:
        status, said = worker.get("/readyz")
        return status == 503 and f"authentication failed for User:{USER}" in said

    wait_until("a worker that says that it is refused", refused)
    secret.write_text(f"{NEW}\n", encoding="utf-8")


def test_a_password_changed_at_the_brokers_and_in_its_file_needs_no_restart(
    kafka: KafkaAccess,  # noqa: ARG001 - skips the test where no broker can run
    tmp_path: Path,
) -> None:
    reauthenticate = {"listener.name.sasl.connections.max.reauth.ms": str(REAUTHENTICATE_MS)}
    with (
        secure_kafka(clients={}, properties=reauthenticate, log_dir=tmp_path) as secure,
        closing(LivePool(secure.kafka, partitions=1)) as pool,
        running_workers(tmp_path) as new_worker,
    ):
        secure.set_password(USER, OLD)
        grant_roles(
            secure, "forebay-worker", "forebay submit", "forebay results", pool=pool.name, principal=f"User:{USER}"
        )
        secret = tmp_path / "password"
        secret.write_text(OLD, encoding="utf-8")
        connection = secure.scram(USER, OLD)
        file = write_properties(
            tmp_path / "client.properties", connection, sasl_password=f"${{directory:{tmp_path}:password}}"
        )
        servers = connection.bootstrap_servers
        gate = Gate(tmp_path)
        worker = new_worker(pool, bootstrap_servers=servers, kafka_properties=file, handler=HANDLER, limit_max=4)
        with Producer(bootstrap_servers=servers, pool=pool.name, kafka_properties=file) as producer:
            held = pool.submit(Tier.MID, envelope("held", payload=gate.payload()))
            wait_until("a request that runs", lambda: gate.starts()["held"] == 1)
            hold_rotation(secure, worker, secret)
            wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)
            gate.open()
            after = producer.submit(envelope("after", payload=gate.noted()))
            outcome = producer.outcome(after.request_id, timeout_seconds=PATIENCE_SECONDS)
        assert outcome.status == "completed"
        assert {result.status for result in pool.results([*held, "after"]).values()} == {"completed"}
        assert gate.starts() == {"held": 1, "after": 1}
        assert NEW not in worker.log_path.read_text(encoding="utf-8")
