"""The tables in docs/ say what the code says. Where one does not, the failure shows the table as it should stand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from forebay_producer.settings import ProducerSettings
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.kafka.acls import ACLS
from forebay_schemas.runtime.settings import ENV_PREFIX, CommonSettings
from forebay_worker.settings import WorkerSettings

DOCS = Path(__file__).parents[2] / "docs"

# What a default is made of at the start cannot be written down as a value.
MADE_DEFAULTS = {
    "worker_id": "host name, hyphen, process id",
    "biz_paths": "`{}`",
    "tenant_weights": "`{}`",
    "exporter_tier_times": "`{}`",
    "tier_ttl_ms": "`{}`",
    "tier_wait_ms": "`{}`",
}


def table(*rows: Iterable[str]) -> str:
    """The rows, the first as the head, in Markdown."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * lines[0].count(" | ") + " --- |")
    return "\n".join(lines)


def assert_has(page: str, wanted: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert wanted in text, f"docs/{page} should hold this table:\n{wanted}"


def default_of(name: str, field: FieldInfo) -> str:
    if field.default_factory is not None:
        return MADE_DEFAULTS[name]
    value: Any = field.default
    if value is None:
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def settings_table(settings: type[CommonSettings]) -> str:
    """The class's own settings: those that the common ones lack, or have with another default."""
    common = {} if settings is CommonSettings else CommonSettings.model_fields
    own = {
        name: field
        for name, field in settings.model_fields.items()
        if name not in common or common[name].default != field.default
    }
    head = ("Variable", "Default", "What it takes")
    return table(
        head,
        *(
            (f"`{ENV_PREFIX}{name.upper()}`", default_of(name, field), field.description or "")
            for name, field in own.items()
        ),
    )


@pytest.mark.parametrize("settings", [CommonSettings, ProducerSettings, WorkerSettings], ids=lambda each: each.__name__)
def test_every_setting_is_written_down_with_its_default(settings: type[CommonSettings]) -> None:
    assert_has("settings.md", settings_table(settings))


def test_no_setting_is_written_down_that_does_not_exist() -> None:
    rows = [
        line for line in (DOCS / "settings.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `FO")
    ]
    tables = [settings_table(each) for each in (CommonSettings, ProducerSettings, WorkerSettings)]
    assert [row for row in rows if not any(row in each for each in tables)] == []


def test_every_reason_is_written_down_with_what_to_do() -> None:
    head = ("Code", "Status", "Tried again", "What it means", "What to do")
    rows = (
        (f"`{each.code}`", each.status.value, "yes" if each.retryable else "no", each.meaning, each.action)
        for each in Reason
    )
    assert_has("reasons.md", table(head, *rows))


def test_every_acl_is_written_down_with_what_it_is_for() -> None:
    head = ("Who", "Operations", "On", "For")
    rows = (
        (f"`{acl.role}`", ", ".join(acl.operations), f"{acl.resource} `{acl.name}{'*' * acl.is_prefix}`", acl.why)
        for acl in ACLS
    )
    assert_has("security.md", table(head, *rows))


def test_no_reason_is_written_down_that_does_not_exist() -> None:
    lines = (DOCS / "reasons.md").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("| `") for line in lines) == len(Reason)
