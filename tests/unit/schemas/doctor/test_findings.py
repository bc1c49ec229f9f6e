"""A doctor's findings: exit codes, text, topics, permissions, clocks and connections."""

from __future__ import annotations

import json
import socket

import pytest
from confluent_kafka import KafkaError

from forebay_sandbox.kafka.local import free_port
from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.topics import Pool
from forebay_schemas.doctor.clock import ProbeTimes, Skew, skew_finding, skew_of
from forebay_schemas.doctor.credentials import credentials_findings
from forebay_schemas.doctor.findings import (
    Finding,
    Status,
    exit_code,
    failed,
    findings_json,
    findings_text,
    ok,
    skipped,
    summary,
    warning,
)
from forebay_schemas.doctor.needs import Role, Weight, lacking, needs_of
from forebay_schemas.doctor.network import tcp_problems
from forebay_schemas.doctor.registry import check_registry
from forebay_schemas.doctor.topics import (
    PartitionReplicas,
    TopicFound,
    drift_findings,
    existence_findings,
    permission_findings,
    replica_findings,
)
from forebay_schemas.formats.schema_registry import SchemaRegistry
from forebay_schemas.kafka.permissions import Operation, Resource
from harness.doctor import backend, black_hole

POOL = Pool("p")
EVERYTHING = frozenset(Operation)


def topic(name: str, *, partitions: int = 1, replicas: int = 1, in_sync: int = 1) -> TopicFound:
    one = [
        PartitionReplicas(number=number, has_leader=in_sync > 0, replicas=replicas, in_sync=in_sync)
        for number in range(partitions)
    ]
    return TopicFound(name=name, partitions=tuple(one))


def found_as_specified() -> tuple[dict[str, TopicFound], dict[str, dict[str, str]]]:
    specs = POOL.specs(partitions=4, replication=1)
    found = {spec.name: topic(spec.name, partitions=spec.partitions) for spec in specs}
    return found, {spec.name: dict(spec.config) for spec in specs}


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([ok("topics", "x"), warning("clock", "x", fix="y"), skipped("gpu", "x")], 0),
        ([ok("topics", "x"), failed("backend", "x", fix="y")], 1),
        ([failed("kafka.credentials", "x", fix="y")], 1),
        ([failed("kafka.connection", "x", fix="y"), failed("backend", "x", fix="y")], 3),
    ],
)
def test_the_exit_code_says_whether_it_works_and_whether_a_broker_was_reached(
    findings: list[Finding], code: int
) -> None:
    assert exit_code(findings) == code


def test_text_names_what_to_do_below_and_keeps_to_one_line_each() -> None:
    text = findings_text([ok("topics", "all there"), failed("backend", "it says\n\x1b[31mno", fix="ask it\nagain")])
    assert text.splitlines() == [
        "ok       topics   all there",
        r"failed   backend  it says \x1b[31mno",
        "                  -> ask it again",
    ]


def test_json_has_an_object_a_line_with_stable_names() -> None:
    [line] = findings_json([skipped("clock", "cannot be told")]).splitlines()
    assert json.loads(line) == {"check": "clock", "status": "skipped", "detail": "cannot be told", "fix": None}


def test_the_summary_counts() -> None:
    assert summary([ok("a", "x"), ok("b", "x"), failed("c", "x", fix="y")]) == (
        "doctor: 2 ok, 0 warning, 1 failed, 0 skipped"
    )


@pytest.mark.parametrize(
    ("probes", "ahead_ms", "margin_ms"),
    [
        pytest.param([(1000, 1010, 1005)], 0, 5.5, id="right"),
        pytest.param([(11_000, 11_010, 1005)], 10_000, 5.5, id="ahead"),
        pytest.param([(1000, 1300, 1005), (2000, 2002, 2001)], 0, 1.5, id="the-tightest-counts"),
        pytest.param([(1000, 1002, 1001), (9000, 9002, 2001)], 7000, 2, id="a-clock-set-meanwhile"),
    ],
)
def test_the_skew_lies_between_sending_and_acknowledgement(
    probes: list[tuple[int, int, int]], ahead_ms: float, margin_ms: float
) -> None:
    skew = skew_of([ProbeTimes(sent_ms=sent, acked_ms=acked, broker_ms=broker) for sent, acked, broker in probes])
    assert skew.ahead_ms == pytest.approx(ahead_ms, abs=1)
    assert skew.margin_ms == pytest.approx(margin_ms, abs=1)


@pytest.mark.parametrize(
    ("ahead_ms", "margin_ms", "status", "words"),
    [
        (900, 1, Status.OK, "0.900 s ahead of the brokers' (to within 0.001 s)"),
        (-3_600_000, 5, Status.WARNING, "3600.000 s behind the brokers' (to within 0.005 s)"),
        (1_500, 600, Status.OK, "1.500 s ahead"),
    ],
)
def test_a_clock_is_wrong_when_it_is_surely_more_than_a_second_off(
    ahead_ms: float, margin_ms: float, status: Status, words: str
) -> None:
    finding = skew_finding(Skew(ahead_ms=ahead_ms, margin_ms=margin_ms))
    assert finding.status is status
    assert words in finding.detail


def test_topics_as_they_should_be_give_a_line_each_check() -> None:
    found, settings = found_as_specified()
    findings = [*existence_findings(found, pool=POOL), *drift_findings(found, settings, pool=POOL)]
    findings += replica_findings(found)
    assert [finding.status for finding in findings] == [Status.OK] * 3


def test_missing_topics_are_named_with_the_command_that_makes_them() -> None:
    found, _ = found_as_specified()
    gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    found[POOL.results] = TopicFound(name=POOL.results, error=gone)
    [finding] = existence_findings(found, pool=POOL)
    assert (finding.status, finding.detail) == (Status.FAILED, "1 of 18 missing: forebay.p.results")
    assert "forebay topics create --pool p" in str(finding.fix)


def test_a_topic_that_may_not_be_seen_is_not_called_missing() -> None:
    found, _ = found_as_specified()
    found[POOL.results] = TopicFound(name=POOL.results, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    [finding] = existence_findings(found, pool=POOL)
    assert finding.status is Status.WARNING
    assert "cannot tell whether 1 of 18 exist: forebay.p.results" in finding.detail


def test_drift_is_named_by_topic_and_unreadable_settings_are_no_drift() -> None:
    found, settings = found_as_specified()
    settings[POOL.results]["retention.ms"] = "60000"
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    findings = drift_findings(found, {**settings, POOL.audit: denied}, pool=POOL)
    assert [finding.status for finding in findings] == [Status.WARNING, Status.SKIPPED]
    assert findings[0].detail == "forebay.p.results: retention.ms is 60000, should be 604800000"
    assert findings[1].detail.startswith("DescribeConfigs is not permitted on 1 topics: forebay.p.audit")


def test_partitions_without_leader_fail_and_those_out_of_sync_warn() -> None:
    found = {"a": topic("a", replicas=3, in_sync=2), "b": topic("b", replicas=3, in_sync=0)}
    assert [(finding.status, finding.detail) for finding in replica_findings(found)] == [
        (Status.FAILED, "1 of 2 partitions have no leader: b-0"),
        (Status.WARNING, "1 of 2 partitions have replicas that are not in sync: a-0"),
    ]


@pytest.mark.parametrize("role", Role)
def test_every_permission_that_lacks_is_named_with_operation_and_resource(role: Role) -> None:
    needs = needs_of(role, POOL)
    everything = {(need.access.resource, need.access.name): EVERYTHING for need in needs}
    [fine] = permission_findings(needs, everything, principal="User:a", authorizer="A", role=role)
    assert (fine.status, fine.detail) == (Status.OK, f"User:a may do all {len(needs)} things that a {role} needs")
    for need in needs:
        permitted = everything | {(need.access.resource, need.access.name): EVERYTHING - {need.access.operation}}
        [finding] = permission_findings(needs, permitted, principal="User:a", authorizer="A", role=role)
        assert finding.status is (Status.FAILED if need.weight is Weight.VITAL else Status.WARNING)
        assert f"User:a may not {need.access.operation} {need.access.target}" in finding.detail
        assert f"--operation {need.access.operation} --{need.access.target}" in str(finding.fix)


def test_a_cluster_without_authorizer_is_called_so() -> None:
    needs = needs_of(Role.WORKER, POOL)
    permitted = {(need.access.resource, need.access.name): EVERYTHING for need in needs}
    [finding] = permission_findings(needs, permitted, principal="User:a", authorizer="", role=Role.WORKER)
    assert (finding.status, finding.detail) == (
        Status.OK,
        "the cluster has no authorizer: everybody may do everything",
    )


def test_what_is_not_there_lacks_nothing() -> None:
    assert lacking(needs_of(Role.WORKER, POOL), {(Resource.TOPIC, POOL.results): EVERYTHING}) == []


@pytest.mark.parametrize(
    ("properties", "statuses", "words"),
    [
        ({}, ["skipped", "ok"], "accepted: User:ANONYMOUS (without credentials)"),
        ({"security.protocol": "ssl", "ssl.ca.location": "x"}, ["ok", "ok"], "certificate is accepted"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "x"}, ["ok", "ok"], "the subject of x (certificate)"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u"},
            ["ok", "ok"],
            "accepted: User:u (SCRAM-SHA-512)",
        ),
        ({"sasl.username": "u", "sasl.password": "hush"}, ["skipped", "ok", "warning"], "sasl.password, sasl.username"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "hush"},
            ["skipped", "ok", "warning"],
            "sends the secret in clear",
        ),
    ],
)
def test_credentials_that_contradict_each_other_are_named_without_their_values(
    properties: dict[str, str], statuses: list[str], words: str
) -> None:
    findings = credentials_findings(properties)
    assert [finding.status for finding in findings] == statuses
    assert words in findings_text(findings)
    assert "hush" not in findings_text(findings)


def test_addresses_that_cannot_be_reached_are_told_within_the_time_given() -> None:
    closed = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        problems = tcp_problems([("127.0.0.1", port), ("127.0.0.1", closed)], seconds=5.0)
    assert {address: why.problem for address, why in problems.items()} == {("127.0.0.1", closed): "connection refused"}


@pytest.mark.parametrize(
    ("code", "body", "status", "words"),
    [
        (200, b'["a-value", "b-value"]', Status.OK, "answers and has 2 subjects"),
        (401, b'{"error_code": 40101, "message": "who are you"}', Status.FAILED, "check the credentials"),
        (404, b"<html>nothing here", Status.FAILED, "it may need a path"),
        (503, b'{"error_code": 503, "message": "later"}', Status.FAILED, "try again later"),
    ],
)
def test_a_schema_registry_is_asked_and_its_answer_told(code: int, body: bytes, status: Status, words: str) -> None:
    with backend(status=code, body=body) as url:
        finding = check_registry(SchemaRegistry(url, properties=None))
    assert (finding.check, finding.status) == ("schema_registry", status)
    assert words in f"{finding.detail} -> {finding.fix}"


def test_a_schema_registry_that_is_not_there_or_hangs_fails_in_time_and_none_is_skipped() -> None:
    down = check_registry(SchemaRegistry(f"http://127.0.0.1:{free_port()}", properties=None))
    assert (down.status, down.fix) == (Status.FAILED, "check FOREBAY_SCHEMA_REGISTRY_URL and that it runs")
    with black_hole() as address:
        hanging = check_registry(SchemaRegistry(f"http://{address}", properties=None), seconds=0.2)
    assert hanging.status is Status.FAILED
    assert "no answer within 0.2 s" in hanging.detail
    assert check_registry(None).status is Status.SKIPPED


def test_a_pool_made_before_streams_is_warned_of_and_works() -> None:
    found, _ = found_as_specified()
    gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    found[POOL.streams] = TopicFound(name=POOL.streams, error=gone)
    [finding] = existence_findings(found, pool=POOL)
    assert (finding.status, finding.detail) == (
        Status.WARNING,
        "forebay.p.streams is missing: answers are not streamed piece by piece",
    )
    assert finding.fix == "create it with: forebay topics create --pool p"


def test_the_topic_of_a_front_is_checked_where_there_is_a_front() -> None:
    front = Front("web")
    found, settings = found_as_specified()
    assert {need.access.name for need in needs_of(Role.PRODUCER, POOL, front=front)} - {
        need.access.name for need in needs_of(Role.PRODUCER, POOL)
    } == {front.presence}
    gone = TopicFound(name=front.presence, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    [finding] = existence_findings(found | {front.presence: gone}, pool=POOL, front=front)
    assert (finding.status, finding.fix) == (Status.FAILED, "create it with: forebay topics create --front web")
    [spec] = front.specs(replication=1)
    found[front.presence] = topic(front.presence)
    settings[front.presence] = dict(spec.config) | {"cleanup.policy": "delete"}
    [drifted] = drift_findings(found, settings, pool=POOL, front=front)
    assert "cleanup.policy is delete, should be compact,delete" in drifted.detail
