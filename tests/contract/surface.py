"""Names that others script against, read from the code: settings, commands, topics, headers, metrics, loggers, errors.

Imports the packages and reads their sources; starts nothing. `test_surface.py` compares it with surface_v1.json.
"""

from __future__ import annotations

import ast
import json
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import typer

import forebay_producer
import forebay_schemas
import forebay_worker
from forebay_producer import metrics as producer_metrics
from forebay_producer.admission.decision import RefusalReason
from forebay_producer.cli import app as producer_cli
from forebay_producer.settings import ProducerSettings
from forebay_sandbox import cli as sandbox_cli
from forebay_schemas.contract import headers
from forebay_schemas.contract.coordination import Capacity, Notice, NoticeKind
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool
from forebay_schemas.contract.worker_load import WorkerLoad
from forebay_schemas.errors import ExitCode, ForebayError
from forebay_schemas.runtime.metrics import Described
from forebay_schemas.runtime.settings import ENV_PREFIX, KNOWN_VARIABLES, CommonSettings
from forebay_worker import cli as worker_cli
from forebay_worker.ops import metrics as worker_metrics
from forebay_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("surface_v1.json")

_SOURCES = ("schemas/src", "producer/src", "worker/src", "sandbox/src")
_BY_NAME_OF_THING = frozenset({"assigned", "tiers", "intakes", "ttl_ms", "wait_ms", "wanted"})
"""Objects of /status whose keys are names of topics, tiers or consumers."""


def settings() -> dict[str, Any]:
    """Each variable that a settings class reads, with its default."""
    by_class = {}
    for each in (CommonSettings, ProducerSettings, WorkerSettings):
        by_class[each.__name__] = {
            f"{ENV_PREFIX}{name.upper()}": None if field.default_factory else _plain(field.default)
            for name, field in sorted(each.model_fields.items())
        }
    return {**by_class, "known": sorted(KNOWN_VARIABLES)}


def commands() -> dict[str, list[str]]:
    """The options and arguments of each command, by its words."""
    apps = {"forebay": producer_cli.app, "forebay-worker": worker_cli.app, "forebay-sandbox": sandbox_cli.app}
    found: dict[str, list[str]] = {}

    def walk(words: str, command: Any) -> None:
        found[words] = sorted("/".join(sorted([*each.opts, *each.secondary_opts])) for each in command.params)
        for name, below in getattr(command, "commands", {}).items():
            walk(f"{words} {name}", below)

    for name, app in apps.items():
        command: click.Command = typer.main.get_command(app)  # type: ignore[assignment] # typer carries a click of its own
        walk(name, command)
    return dict(sorted(found.items()))


def topics() -> dict[str, Any]:
    """The topics of a pool named ``p`` with their settings, and its groups."""
    pool = Pool("p")
    return {
        "topics": {
            spec.name: {"partitions": spec.partitions, **spec.config}
            for spec in pool.specs(partitions=8, replication=3)
        },
        "groups": [*(pool.group(tier) for tier in TIERS), pool.retry_group],
    }


def header_names() -> list[str]:
    """Every header name that is a constant of the contract."""
    return sorted(value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str))


def metrics() -> dict[str, list[str]]:
    """Each deployable's metrics: name, kind and labels."""
    lists: dict[str, tuple[Described, ...]] = {
        "worker": worker_metrics.METRICS,
        "exporter": producer_metrics.EXPORTER_METRICS,
        "library": producer_metrics.LIBRARY_METRICS,
    }
    return {
        name: [f"{each.name} {each.kind.value} {','.join(each.labels)}".rstrip() for each in described]
        for name, described in lists.items()
    }


def records() -> dict[str, list[str]]:
    """The fields of what is written to Kafka as JSON, and the words in them."""
    return {
        "envelope": sorted(Request.__struct_encode_fields__),
        "result": sorted(Result.__struct_encode_fields__),
        "notice": sorted(Notice.__struct_encode_fields__),
        "notice kinds": sorted(NoticeKind),
        "capacity": sorted(Capacity.__struct_encode_fields__),
        "capacity load": sorted(WorkerLoad.__struct_encode_fields__),
        "refusals": sorted(f"{each.value} {each.http_status}" for each in RefusalReason),
        "reasons": sorted(f"{each.code} {each.status} {'retryable' if each.retryable else 'final'}" for each in Reason),
    }


def logger_names() -> list[str]:
    """The names of all loggers, read from the sources."""
    return sorted(
        {
            node.args[0].value
            for source in _SOURCES
            for path in (ROOT / source).rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"get_logger", "getLogger"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        }
    )


def errors() -> dict[str, Any]:
    """Exit codes by name, and each error's stable word with the exit code that it means."""

    def below(kind: type[ForebayError]) -> Iterator[type[ForebayError]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    for package in (forebay_schemas, forebay_producer, forebay_worker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    packages = ("forebay_schemas", "forebay_producer", "forebay_worker")
    return {
        "exit codes": {each.name: each.value for each in ExitCode},
        "errors": {
            each.__name__: f"{each.reason} {int(each.exit_code)}"
            for each in sorted({*below(ForebayError)}, key=lambda each: each.__name__)
            if each.__module__.startswith(packages)
        },
    }


def public_imports() -> dict[str, list[str]]:
    """Imports of services, and the modules that are run by name."""
    return {
        "forebay_producer": sorted(forebay_producer.__all__),
        "forebay_worker": sorted(forebay_worker.__all__),
        "modules to run": [
            "forebay_worker.cli",
            "forebay_worker.signals.nvml",
            "forebay_worker.signals.nvml_inventory",
        ],
    }


def key_paths(document: Any, path: str = "") -> set[str]:
    """The path of each key in a JSON document. Lists count as one element, names of topics and tiers as ``*``."""
    if isinstance(document, list):
        return {each for element in document for each in key_paths(element, f"{path}[]")}
    if not isinstance(document, dict):
        return set()
    found = set()
    for key, value in document.items():
        name = "*" if path.rpartition(".")[2] in _BY_NAME_OF_THING else key
        below = f"{path}.{name}" if path else name
        found |= {below, *key_paths(value, below)}
    return found


SECTIONS: dict[str, Callable[[], Any]] = {
    "settings": settings,
    "commands": commands,
    "topics": topics,
    "headers": header_names,
    "metrics": metrics,
    "records": records,
    "loggers": logger_names,
    "errors": errors,
    "imports": public_imports,
}
"""What is read from the code; `status` is compared with a running worker's, in tests/integration."""


def golden() -> dict[str, Any]:
    """The surface as it was last written down."""
    document: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return document


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def main() -> None:
    """Writes the list anew, `status` excepted."""
    document = {"status": golden()["status"] if GOLDEN.exists() else []}
    document |= {name: read() for name, read in SECTIONS.items()}
    GOLDEN.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
