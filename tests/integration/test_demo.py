"""The demo, and the stack that stays: run as people run them, as commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from forebay_sandbox.engine.process import call
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.process import processes_of
from harness.waiting import wait_until

COMMAND = Path(sys.executable).parent / "forebay-sandbox"
TOKEN_OPTION = "-Dforebay.sandbox.run="


def environment(kafka: KafkaAccess, **more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return plain | {"FOREBAY_BOOTSTRAP_SERVERS": kafka.bootstrap_servers} | more


def sandbox(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_demo_loses_nothing_and_ends_in_one_json_object(kafka: KafkaAccess, tmp_path: Path) -> None:
    run = partial(sandbox, "demo", "--seconds=10", "--rate=10", "--out=out", env=environment(kafka), cwd=tmp_path)
    ran = run()
    # Seconds are promised of a machine that has nothing else to do, all else of any.
    broken = [line for line in ran.stderr.splitlines() if line.startswith("broken promise: ")]
    assert [line for line in broken if "the high tier's P95" not in line] == [], ran.stderr
    assert ran.returncode == (1 if broken else 0), ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["accepted"] == 160
    assert figures["completed"] == 160
    assert (figures["lost"], figures["duplicated"], figures["failed"]) == (0, 0, 0)
    assert (figures["tiers"]["high"]["p95_seconds"] > 3.0) == bool(broken)
    assert figures["direct"]["sent"] == 160
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    series = json.loads((tmp_path / "out" / "demo.json").read_text())["per_second"]
    assert sum(series["arrivals"]) == sum(series["dispatches"]) == 160
    assert max(series["dispatches"]) < max(series["arrivals"]), "the peak is not shaved"
    left = [topic for topic in kafka.admin().list_topics(timeout=10).topics if topic.startswith("forebay.demo-")]
    assert left == []


@pytest.mark.long
def test_free_users_who_pay_the_fee_while_waiting_are_served_sooner_and_once(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    # Pictures a tenth as slow as the demo's: all that happens is as much quicker.
    run = ("demo", "--scenario=drawing", "--image-seconds=1.5", "--out=out")
    ran = sandbox(*run, env=environment(kafka), cwd=tmp_path)
    # Seconds are promised of a machine that has nothing else to do, and of images that take ten times as long.
    broken = [line for line in ran.stderr.splitlines() if line.startswith("broken promise:")]
    assert [sentence for sentence in broken if "what paying users waited" not in sentence] == [], ran.stderr
    assert ran.returncode == (1 if broken else 0), ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert (figures["accepted"], figures["completed"]) == (104, 104)
    assert (figures["lost"], figures["duplicated"], figures["not_drawn"], figures["wrong_pictures"]) == (0, 0, 0, 0)
    fee, free = figures["users"]["fee"], figures["users"]["free"]
    assert fee["count"] >= 5
    assert fee["false_answers"] == 0
    assert fee["saved_p50_seconds"] > 0
    assert fee["after_fee"]["p50_wait_seconds"] < free["p50_wait_seconds"]
    assert (tmp_path / "out" / "demo-drawing.png").read_bytes().startswith(b"\x89PNG")
    left = [topic for topic in kafka.admin().list_topics(timeout=10).topics if topic.startswith("forebay.demo-")]
    assert left == []


def test_a_demo_that_is_killed_leaves_nothing_running(kafka: KafkaAccess, tmp_path: Path) -> None:
    with subprocess.Popen(
        [COMMAND, "demo", "--out=out"], env=environment(kafka), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stderr is not None
            assert any("960 requests" in line for line in demo.stderr)
            token = token_of_children(demo.pid)
            assert len(processes_of(token)) == 4  # two engines, two workers
        finally:
            demo.kill()
    wait_until_gone(token)


def token_of_children(pid: int) -> str:
    options = {
        option.removeprefix(TOKEN_OPTION)
        for child in psutil.Process(pid).children()
        for option in child.cmdline()
        if option.startswith(TOKEN_OPTION)
    }
    assert len(options) == 1
    return options.pop()


def wait_until_gone(token: str) -> None:
    deadline = time.monotonic() + 30
    while processes_of(token):
        assert time.monotonic() < deadline, "processes of a killed demo still run"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seconds=1"], "--seconds: is 1; give 5 to 600"),
        (["--image-seconds=3"], "--image-seconds: does not apply to --scenario pulse; leave it out"),
        (["--scenario=drawing", "--rate=3"], "--rate: does not apply to --scenario drawing; leave it out"),
        (["--scenario=drawing", "--image-seconds=0"], "--image-seconds: is 0; give 0.2 to 60"),
    ],
)
def test_the_demo_says_what_is_wrong_with_its_options(
    kafka: KafkaAccess, tmp_path: Path, options: list[str], message: str
) -> None:
    ran = sandbox("demo", *options, env=environment(kafka), cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == f"forebay-sandbox: {message}\n"


@pytest.fixture
def stack_folder(kafka: KafkaAccess, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    sandbox("down", env=environment(kafka), cwd=tmp_path)


@pytest.mark.long
def test_the_stack_stays_until_it_is_taken_down(kafka: KafkaAccess, stack_folder: Path) -> None:
    env = environment(kafka, FOREBAY_POOL="stack-that-stays")
    first = sandbox("up", env=env, cwd=stack_folder)
    assert first.returncode == 0, first.stderr
    assert f"export FOREBAY_BOOTSTRAP_SERVERS={kafka.bootstrap_servers} FOREBAY_POOL=stack-that-stays" in first.stdout
    run = json.loads((stack_folder / ".sandbox" / "stack" / "run.json").read_text())
    before = {process.pid for process in processes_of(run["token"])}
    assert len(before) == 4  # an engine, two workers, an exporter
    assert call(run["status"]["engine_url"], "GET", "/v1/models")[0] == 200
    assert listening(run["token"]) == {"127.0.0.1"}

    again = sandbox("up", env=env, cwd=stack_folder)
    assert again.returncode == 0, again.stderr
    assert "runs already" in again.stderr
    assert {process.pid for process in processes_of(run["token"])} == before

    elsewhere = sandbox("up", env=env | {"FOREBAY_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, cwd=stack_folder)
    assert elsewhere.returncode == 3, elsewhere.stderr
    assert {process.pid for process in processes_of(run["token"])} == before

    victim = next(process for process in processes_of(run["token"]) if "run" in process.cmdline())
    victim.kill()
    repaired = sandbox("up", env=env, cwd=stack_folder)
    assert repaired.returncode == 0, repaired.stderr
    assert re.search(r"the stack was incomplete \(worker-\d gone or not ready\): restarting it", repaired.stderr)
    assert "is up" in repaired.stderr
    assert processes_of(run["token"]) == []
    now = json.loads((stack_folder / ".sandbox" / "stack" / "run.json").read_text())
    assert len(processes_of(now["token"])) == 4

    down = sandbox("down", env=env, cwd=stack_folder)
    assert down.returncode == 0, down.stderr
    assert processes_of(now["token"]) == []
    assert "was not running" in sandbox("down", env=env, cwd=stack_folder).stderr


def listening(token: str) -> set[str]:
    """The addresses at which the processes with this token are to be reached."""
    sockets = [each for process in processes_of(token) for each in process.net_connections("tcp")]
    return {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}


@pytest.mark.long
def test_one_more_worker_as_the_stack_says_shares_the_engine(kafka: KafkaAccess, stack_folder: Path) -> None:
    env = environment(kafka, FOREBAY_POOL="stack-with-one-more")
    up = sandbox("up", env=env, cwd=stack_folder)
    assert up.returncode == 0, up.stderr
    [command] = [line.strip() for line in up.stdout.splitlines() if "forebay-worker run" in line]
    [export] = [line.strip() for line in up.stdout.splitlines() if line.strip().startswith("export ")]
    run = json.loads((stack_folder / ".sandbox" / "stack" / "run.json").read_text())
    typed = f"{export}; {command.replace('forebay-worker', 'exec forebay-worker')}"
    worker = subprocess.Popen(["bash", "-c", typed], env=env)
    try:
        wait_until("three share it", lambda: len(sharing(run["status"]["worker_urls"][0])) == 3)
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


def sharing(worker_url: str) -> list[object]:
    """The workers that a worker knows to share its backend."""
    return list(json.loads(call(worker_url, "GET", "/status")[1])["sharing"]["workers"])


def test_an_incident_leaves_dead_letters_of_three_causes_and_an_engine_that_is_broken_until_mended(
    kafka: KafkaAccess, stack_folder: Path
) -> None:
    env = environment(kafka, FOREBAY_POOL="stack-with-an-incident")
    alone = sandbox("incident", env=env, cwd=stack_folder)
    assert alone.returncode == 1
    assert alone.stderr == "forebay-sandbox: no stack runs here; start one with: make up\n"

    assert sandbox("up", env=env, cwd=stack_folder).returncode == 0
    broken = sandbox("incident", "--letters=40", env=env, cwd=stack_folder)
    assert broken.returncode == 0, broken.stderr
    letters = kafka.read_all("forebay.stack-with-an-incident.dead-letter")
    reasons = Counter(dict(letter.headers() or ())["forebay-reason"] for letter in letters)
    assert reasons == {b"backend_rejected": 16, b"backend_timeout": 12, b"unknown_biz_type": 12}

    url = json.loads((stack_folder / ".sandbox" / "stack" / "run.json").read_text())["status"]["engine_url"]
    assert len(json.loads(call(url, "GET", "/sandbox/faults")[1])["faults"]) == 1
    assert sandbox("incident", "--mend", env=env, cwd=stack_folder).returncode == 0
    assert json.loads(call(url, "GET", "/sandbox/faults")[1]) == {"faults": []}


def test_a_cluster_that_does_not_answer_is_one_line_and_status_3(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    away = env | {"FOREBAY_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    # Side by side: each waits for ten seconds.
    with ThreadPoolExecutor(2) as threads:
        for ran in threads.map(lambda name: sandbox(name, env=away, cwd=tmp_path), ("demo", "up")):
            assert ran.returncode == 3, ran.stderr
            assert ran.stderr.startswith("forebay-sandbox: no broker answered at 127.0.0.1:1 ")
            assert ran.stderr.count("\n") == 1
