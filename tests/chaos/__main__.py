"""`python -m chaos --seed N --seconds S`: progress on stderr, one JSON object as the last line of stdout, exit code 1
when a promise is broken."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

from chaos.facts import RunError
from chaos.outage import run_outage
from chaos.plan import make_plan
from chaos.report import as_document, details
from chaos.run import run_plan
from forebay_schemas.errors import ForebayError


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="chaos", description="Breaks things by a seed and counts what became of them."
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed breaks the same things [1]")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long things are broken [300]")
    parser.add_argument(
        "--outage-seconds", type=float, help="instead: 10,000 requests wait while the backend refuses for so long"
    )
    parser.add_argument("--folder", type=Path, help="where the logs go; a new temporary folder by default")
    options = parser.parse_args()
    # What the brokers' coming and going looks like to our own clients is no news.
    logging.getLogger("tests.kafka").addHandler(logging.NullHandler())
    logging.getLogger("tests.kafka").propagate = False
    logging.getLogger("forebay.librdkafka").addHandler(logging.NullHandler())
    logging.getLogger("forebay.librdkafka").propagate = False
    try:
        if options.outage_seconds is not None:
            document = run_outage(seconds=options.outage_seconds, folder=options.folder).as_document()
        else:
            document = _run_plan(options)
    except (RunError, ForebayError) as error:
        print(f"error: the run could not be carried out: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
        return 1
    for promise in document["broken_promises"]:
        print(f"broken: {promise}", file=sys.stderr)  # noqa: T201 - the command's answer
    print(json.dumps(document))  # noqa: T201 - the command's answer
    return 1 if document["broken_promises"] else 0


def _run_plan(options: argparse.Namespace) -> dict[str, Any]:
    report = run_plan(make_plan(seed=options.seed, seconds=options.seconds), folder=options.folder)
    document = as_document(report)
    for name, lines in details(report).items():
        (report.folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (report.folder / "report.json").write_text(json.dumps(document, indent=2))
    return document


if __name__ == "__main__":
    sys.exit(main())
