"""Logs of a whole process, read from its standard error: ours, Python's, librdkafka's. Starts processes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import Any

PROGRAM = """
import logging, sys, threading
import structlog
from forebay_schemas.runtime.log import configure_logging

configure_logging(level="info", service="worker")
log = structlog.get_logger("forebay.test")
"""


def run(body: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + body], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_off_a_terminal_every_line_is_json_with_the_same_names() -> None:
    ours, theirs, formatted = run("""
log.info("started", partitions=3, odd=b"\\xff", half="\\ud800")
log.debug("not shown")
logging.getLogger("aiohttp.server").warning("slow %s", "client")
log.warning("so %s", "old", service="other")
""")
    assert (ours["event"], ours["level"], ours["logger"], ours["service"]) == (
        "started",
        "info",
        "forebay.test",
        "worker",
    )
    assert ours["timestamp"].endswith("Z")
    assert ours["partitions"] == 3
    assert (theirs["event"], theirs["level"], theirs["service"]) == ("slow client", "warning", "worker")
    assert (formatted["event"], formatted["service"]) == ("so old", "other")


def test_an_exception_is_one_line_with_its_traceback_in_any_thread() -> None:
    ours, theirs = run("""
def fail():
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed", offset=7)
        logging.getLogger("x").exception("failed too")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
""")
    for line in (ours, theirs):
        assert line["exception"].startswith("Traceback (most recent call last)")
        assert line["exception"].endswith("ValueError: boom")
        assert (line["level"], line["service"]) == ("error", "worker")
    assert ours["offset"] == 7


def test_librdkafkas_log_goes_the_same_way() -> None:
    lines = run("""
import time
from confluent_kafka import Producer
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX

nobody = KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={})
config = producer_config(nobody, client_id="test", record_bytes_max=REQUEST_BYTES_MAX)
producer = create_client(Producer, config)
deadline = time.monotonic() + 20
seen = threading.Event()
class Watch(logging.Filter):
    def filter(self, record):
        seen.set()
        return True
logging.getLogger("forebay.librdkafka").addFilter(Watch())
while not seen.is_set() and time.monotonic() < deadline:
    producer.poll(0.05)
""")
    assert lines
    assert {(line["logger"], line["service"]) for line in lines} == {("forebay.librdkafka", "worker")}
    assert "127.0.0.1:1" in lines[0]["event"]


def test_on_a_terminal_a_person_can_read_it_and_no_local_variable_is_shown() -> None:
    leader, follower = pty.openpty()
    body = """
def fail():
    payload = "confidential"
    raise ValueError("boom")
try:
    fail()
except ValueError:
    log.exception("failed")
"""
    # The terminal's buffer holds the few lines, so that they can be read when the program has ended.
    subprocess.run([sys.executable, "-c", PROGRAM + body], stderr=follower, timeout=60, check=True)
    text = os.read(leader, 65536).decode()
    os.close(follower)
    os.close(leader)
    assert "failed" in text
    assert "ValueError: boom" in text
    assert not text.startswith("{")
    assert "confidential" not in text


def test_a_line_that_speaks_of_a_request_has_the_ids_of_its_trace() -> None:
    told, spoken, hostile, other = run("""
from forebay_schemas.runtime.log import spoken_of
traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
log.info("told", traceparent=traceparent)
class Subject:
    traceparent = traceparent
token = spoken_of.set(Subject())
logging.getLogger("users.handler").warning("spoken of")
spoken_of.reset(token)
log.info("hostile", traceparent="\\n" * 600)
log.info("of no request", traceparent=None)
""")
    for line in (told, spoken):
        assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
        assert line["span_id"] == "b7ad6b7169203331"
    assert all("traceparent" not in line for line in (told, spoken, hostile, other))
    assert all("trace_id" not in line for line in (hostile, other))


def test_at_a_terminal_what_others_said_steers_nothing() -> None:
    body = r"""
evil = "\x1b]0;title\x07 \x9b31m \u202e"
log.warning("refused", error=evil, many=[evil], count=3)
logging.getLogger("x").warning("said %s", evil)
try:
    raise ValueError(evil)
except ValueError:
    log.exception("failed")
"""
    controller, terminal = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM + body], stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65_536):
            shown += chunk
    except OSError:
        pass
    process.wait(60)
    os.close(controller)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert plain.count("x1b]0;title") == 4
    assert [one for one in plain if not one.isprintable() and one not in "\r\n"] == []
    assert "count=3" in plain.replace("'", "")
