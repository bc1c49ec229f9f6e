"""Every place in which a command prints: what others sent reaches a terminal only as `printable` makes it.

Reads the sources. What is printed is made by one of the functions that do so, is a constant, or is named here with why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

PRINTING = (
    *sorted((ROOT / "producer/src/forebay_producer/cli").rglob("*.py")),
    ROOT / "worker/src/forebay_worker/cli.py",
    *sorted((ROOT / "worker/src/forebay_worker/calibrate").rglob("*.py")),
    ROOT / "sandbox/src/forebay_sandbox/cli.py",
)

WRITERS = frozenset(
    {"typer.echo", "print", "sys.stdout.write", "sys.stdout.writelines", "sys.stdout.buffer.write", "sys.stderr.write"}
    | {"console.print", "self._console.print", "stdout_console().print"}
)

MAKES_PRINTABLE = frozenset(
    {"printable", "printable_lines", "printable_json", "printable_document"}
    # Each of these ends in one of the above, as its own tests say.
    | {"to_json", "findings_text", "findings_json", "summary", "status_text", "groups_text", "view_text"}
)

OF_ITS_OWN = {
    ("tables.py", "line + '\\n'"): "Rows: cells come from _cell, which makes them printable",
    ("tables.py", "shown"): "print_table: its rows are to be printable, and each caller's are",
    ("backlog.py", "_as_table(record)"): "numbers and names of tiers",
    ("plan.py", "rows"): "numbers and names of tiers",
    ("doctor.py", "show(findings) + '\\n'"): "findings_text or findings_json",
    ("cli.py", "CLEAR"): "the screen of status --watch",
}


def calls(path: Path) -> Iterator[tuple[str, ast.expr | None]]:
    """The writers that are called in a module, and what each is given."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (writer := ast.unparse(node.func)) in WRITERS:
            yield writer, node.args[0] if node.args else None


def is_made_printable(given: ast.expr | None) -> bool:
    if given is None or isinstance(given, ast.Constant):
        return True
    names = {node.func.id for node in ast.walk(given) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return not names.isdisjoint(MAKES_PRINTABLE)


def test_nothing_is_printed_as_it_came() -> None:
    left = {
        (path.name, ast.unparse(given))
        for path in PRINTING
        for _, given in calls(path)
        if given is not None and not is_made_printable(given)
    }
    version = {(name, text) for name, text in left if "version(" in text}
    assert left - version - OF_ITS_OWN.keys() == set()
    assert OF_ITS_OWN.keys() - left == set(), "named here and no longer there"
