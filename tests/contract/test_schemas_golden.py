"""Version 1 of the contract, as committed bytes: what they mean must stay the same for ever. Reads `golden_v1`.

A test that fails here says that records already written, or programs already deployed, would be read differently.
Vectors are added, never changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.envelope import JsonCodec, Request, deadline_ms, priority_in, tier_for
from forebay_schemas.contract.headers import read_history
from forebay_schemas.contract.offsets_metadata import decode_metadata
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason, Status
from forebay_schemas.contract.results import decode_result, encode_result
from forebay_schemas.formats.avro import envelope_schemas
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas

FIRST_ENQUEUED_AT = 1_760_000_000_000


def vectors(name: str) -> Any:
    return json.loads((Path(__file__).parent / "golden_v1" / name).read_text(encoding="utf-8"))


def named(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors(name), ids=lambda vector: vector["name"])


@named("envelopes.json")
def test_an_envelope_of_version_1_means_what_it_meant(vector: dict[str, Any]) -> None:
    assert_means(JsonCodec().decode(vector["value"].encode()), vector)


@named("envelopes_avro.json")
def test_an_envelope_of_version_1_in_avro_means_what_it_meant(vector: dict[str, Any]) -> None:
    assert_means(EnvelopeReader(NoSchemas()).read(bytes.fromhex(vector["value_hex"])), vector)


def test_the_schemas_that_records_were_written_with_are_known_for_ever() -> None:
    assert [fingerprint.hex() for fingerprint in envelope_schemas()][:1] == ["a8838aca30cce80c"]


def assert_means(request: Request, vector: dict[str, Any]) -> None:
    tier = tier_for(request)
    means = {name: getattr(request, name) for name in request.__struct_fields__ if name != "payload"} | {
        "payload": bytes(request.payload).decode(),
        "reply": json.loads(bytes(request.reply)),
        "tier": tier.value,
        "priority_in_tier": priority_in(request, tier=tier),
        "deadline_ms": deadline_ms(request, tier=tier, first_enqueued_at=FIRST_ENQUEUED_AT),
    }
    assert {name: means[name] for name in vector["means"]} == vector["means"]


@named("results.json")
def test_a_result_of_version_1_means_what_it_meant(vector: dict[str, Any]) -> None:
    result = decode_result(vector["value"].encode())
    assert {name: getattr(result, name) for name in vector["means"]} == vector["means"]
    assert decode_result(encode_result(result)) == result


@named("headers.json")
def test_headers_of_version_1_mean_what_they_meant(vector: dict[str, Any]) -> None:
    headers = [(name, None if value is None else value.encode()) for name, value in vector["headers"]]
    history = msgspec.structs.asdict(read_history(headers))
    assert {name: history[name] for name in vector["means"]} == vector["means"]


@named("commits.json")
def test_a_commit_of_version_1_means_what_it_meant(vector: dict[str, Any]) -> None:
    metadata = decode_metadata(vector["committed"], vector["text"])
    assert metadata is not None
    means = {name: getattr(metadata, name) for name in vector["means"]}
    assert msgspec.to_builtins(means, builtin_types=()) == msgspec.to_builtins(
        {name: tuple(map(tuple, said)) if isinstance(said, list) else said for name, said in vector["means"].items()}
    )


def test_reasons_are_added_but_never_renamed_nor_given_another_status() -> None:
    known = vectors("reasons.json")
    now = {reason.code: {"status": reason.status.value, "retryable": reason.retryable} for reason in Reason}
    assert {code: now.get(code) for code in known} == known


def test_each_reason_has_a_code_of_its_own_and_says_what_to_do() -> None:
    assert len(REASONS_BY_CODE) == len(Reason)
    for code, reason in REASONS_BY_CODE.items():
        assert reason.code == code == reason.name.lower()
        assert reason.meaning.endswith(".")
        assert reason.action.endswith(".")
        assert "\n" not in reason.meaning + reason.action
        # Whoever is told to try again must not be told that it went well, or that it is too late.
        assert not reason.retryable or reason.status is Status.FAILED


def test_the_six_ends_of_a_request_are_fixed() -> None:
    assert {status.value for status in Status} == {"completed", "failed", "expired", "cancelled", "shed", "rejected"}
