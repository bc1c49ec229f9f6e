"""docs/metrics.md lists what a worker's /metrics really shows. Where it does not, the failure shows the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from forebay_schemas.tiers import Tier
from harness.live_pool import envelope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.served import Served

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def rows_of(page: str) -> Iterator[str]:
    """A row of the table for each metric of ours, in the order in which the worker shows them."""
    for family in text_string_to_metric_families(page):
        if family.name.startswith("forebay_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            shown = ", ".join(f"`{label}`" for label in labels) or "none"
            yield f"| `{name}` | {family.type} | {shown} | {family.documentation} |"


def test_the_page_lists_every_metric_and_no_other(served: Served) -> None:
    # The labels of outcomes are there only once there is one.
    served.pool.results(served.pool.submit(Tier.HIGH, envelope("documented")))
    wanted = list(rows_of(served.worker.get("/metrics")[1]))
    found = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `forebay_")]
    assert found == wanted, "docs/metrics.md should list:\n" + "\n".join(wanted)
