"""Tokens from a user's function, on a broker that takes nothing else: renewed in time, and missing for a while."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from forebay_producer import Producer
from forebay_sandbox.testing.kafka_secure import secure_kafka
from harness.gate import HANDLER, Gate
from harness.live_pool import LivePool, envelope
from harness.locked_down import grant_roles, write_properties
from harness.token_provider import VARIABLE, write_asked
from harness.waiting import PATIENCE_SECONDS, wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.kafka.access import KafkaAccess
    from forebay_schemas.kafka.connection import KafkaConnection

pytestmark = pytest.mark.slow

CLIENT, SECRET = "token-client", "token-secret"
# librdkafka asks for the next token after 80 %, connections use it from 90 % on, and a broker refuses a connection that
# comes with a new one twice within a second: 3 seconds are between, on a busy machine.
TOKEN_SECONDS = 30.0
PROVIDER = "harness.token_provider:token"


def test_a_function_gives_tokens_and_what_fails_in_it_is_told_where_people_look(
    kafka: KafkaAccess,  # noqa: ARG001 - skips the test where no broker can run
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, gate = tmp_path / "asked.json", Gate(tmp_path)
    monkeypatch.setenv(VARIABLE, str(asked))
    with (
        secure_kafka(clients={CLIENT: SECRET}, log_dir=tmp_path) as secure,
        closing(LivePool(secure.kafka, partitions=1)) as pool,
        running_workers(tmp_path) as new_worker,
    ):
        secure.tokens.token_seconds = TOKEN_SECONDS
        roles = ("forebay-worker", "forebay submit", "forebay results")
        grant_roles(secure, *roles, pool=pool.name, principal=f"User:{CLIENT}")
        url = secure.tokens.token_url
        write_asked(asked, url=url, client=CLIENT, secret=SECRET)
        connection = without_endpoint(secure.oauth(CLIENT, SECRET))
        file = write_properties(tmp_path / "client.properties", connection)
        servers = connection.bootstrap_servers
        worker = new_worker(
            pool,
            bootstrap_servers=servers,
            kafka_properties=file,
            kafka_token_provider=PROVIDER,
            handler=HANDLER,
        )
        monkeypatch.setenv("FOREBAY_KAFKA_TOKEN_PROVIDER", PROVIDER)
        with Producer(bootstrap_servers=servers, pool=pool.name, kafka_properties=file) as producer:
            first = producer.submit(envelope("first", payload=gate.noted()))
            assert producer.outcome(first.request_id, timeout_seconds=PATIENCE_SECONDS).status == "completed"

            write_asked(asked, url=url, client=CLIENT, secret="no longer right")

            def says_why() -> bool:
                status, said = worker.get("/readyz")
                return status == 503 and f"{PROVIDER} raised HTTPStatusError" in said

            wait_until("a worker that says why it has no token", says_why)
            write_asked(asked, url=url, client=CLIENT, secret=SECRET)
            wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)
            issued = len(secure.tokens.issued)
            wait_until("a token that is fetched again", lambda: len(secure.tokens.issued) > issued)
            after = producer.submit(envelope("after", payload=gate.noted()))
            assert producer.outcome(after.request_id, timeout_seconds=PATIENCE_SECONDS).status == "completed"
        assert SECRET not in worker.log_path.read_text(encoding="utf-8")


def without_endpoint(connection: KafkaConnection) -> KafkaConnection:
    """The same way in, with nothing said of where tokens come from."""
    for name in [name for name in connection.properties if name.startswith("sasl.oauthbearer.")]:
        del connection.properties[name]
    return connection
