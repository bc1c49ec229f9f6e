"""An exporter as its users start it: the command `forebay exporter` on a port of its own. Speaks HTTP to it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from forebay_sandbox.engine.process import call
from harness.forebay_command import ForebayCommand


class ExporterProcess:
    """A running exporter; it ends with its block."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        found = re.search(r"http://[^/]+:(\d+)/metrics", said)
        assert found, said + process.stderr.read().decode()
        self.url = f"http://127.0.0.1:{found[1]}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page."""
        status, body = call(self.url, "GET", path)
        return status, body.decode()

    def metrics(self, name: str, **labels: str) -> list[float]:
        """The values of the samples of this name with these labels."""
        return [
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of the one such sample; None while there is none."""
        values = self.metrics(name, **labels)
        assert len(values) <= 1, (name, labels, values)
        return values[0] if values else None


@contextmanager
def running_exporter(forebay: ForebayCommand, *pools: str) -> Iterator[ExporterProcess]:
    """One of these pools, or of the command's own."""
    options = [word for pool in pools for word in ("--pool", pool)]
    with forebay.running("exporter", *options, "--host", "127.0.0.1", "--port", "0") as process:
        yield ExporterProcess(process)
