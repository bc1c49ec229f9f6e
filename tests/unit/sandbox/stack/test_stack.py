"""The commands that `forebay-sandbox up` prints can be typed."""

from __future__ import annotations

import shlex

from forebay_sandbox.stack.service import StackStatus, next_steps
from forebay_sandbox.stack.stack import backend_settings
from forebay_worker.settings import WorkerSettings

STATUS = StackStatus(
    pool="default",
    bootstrap_servers="127.0.0.1:9092",
    local_kafka=True,
    engine_url="http://127.0.0.1:1",
    worker_urls=("http://127.0.0.1:2", "http://127.0.0.1:3"),
    exporter_url="http://127.0.0.1:4",
    log_dir="logs",
)


def test_one_more_worker_is_told_what_the_stack_s_workers_are() -> None:
    [line] = [line for line in next_steps(STATUS).splitlines() if "forebay-worker run" in line]
    *variables, _, _, option, port = shlex.split(line)
    given = dict(variable.split("=", 1) for variable in variables)
    assert (option, port) == ("--ops-port", "0")  # two on one machine
    assert given.pop("FOREBAY_OPS_HOST") == "127.0.0.1"
    assert given == backend_settings(STATUS.engine_url)
    fields = {name.removeprefix("FOREBAY_").lower(): value for name, value in given.items()}
    settings = WorkerSettings.model_validate({"bootstrap_servers": STATUS.bootstrap_servers, **fields})
    assert (settings.backend_url, settings.limit_start) == (STATUS.engine_url, 8)
