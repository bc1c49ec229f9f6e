"""Everything that the documents tell people to type exists: commands with these options, make targets, variables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from forebay_producer.cli import app as forebay
from forebay_sandbox import cli as forebay_sandbox
from forebay_schemas.runtime.settings import ENV_PREFIX, KNOWN_VARIABLES
from forebay_worker import cli as forebay_worker

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

APPS = {"forebay": forebay.app, "forebay-worker": forebay_worker.app, "forebay-sandbox": forebay_sandbox.app}
OTHERS = {
    "cat",
    "cosign",
    "curl",
    "docker",
    "echo",
    "export",
    "head",
    "helm",
    "kill",
    "kubectl",
    "openssl",
    "pip",
    "promtool",
    "tail",
    "yes",
}


def typed_in(page: str) -> list[str]:
    """The lines behind a prompt in the page's console blocks, continued ones put together."""
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def simple_commands(line: str) -> list[list[str]]:
    """A line's commands, as words, split at pipes and the like."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in {"|", "&&", ";", "&"}:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


def check_variable(word: str) -> None:
    name = word.partition("=")[0]
    assert not name.startswith(ENV_PREFIX) or name in KNOWN_VARIABLES, f"{name} is no setting"


def check_ours(name: str, words: list[str]) -> None:
    """Lets the command's own parser read the words. Fails for an option, a command or a value that it does not know."""
    command: Any = typer.main.get_command(APPS[name])
    context = command.make_context(name, list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        sub_name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(sub_name, rest, parent=context)


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        if "=" in word:
            assert f"$({word.partition('=')[0]})" in makefile, f"no make target reads {word}"
        else:
            assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), f"make {word} is no target"


@pytest.mark.parametrize(
    ("page", "line"), [(page.name, line) for page in PAGES for line in typed_in(page.read_text(encoding="utf-8"))]
)
def test_what_is_to_be_typed_exists(page: str, line: str) -> None:
    for words in simple_commands(line):
        while words and re.match(r"\w+=", words[0]):
            check_variable(words.pop(0))
        name, *rest = words
        if name == "make":
            check_make(rest)
        elif name in APPS:
            check_ours(name, rest)
        elif name == "kubectl" and "exec" in rest:
            command, *words = rest[rest.index("--") + 1 :]
            check_ours(command, words)
        else:
            assert name in OTHERS, f"{page} tells people to type {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_and_variables_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z][a-z -]*)`", text):
        check_make(target.split())
    for variable in re.findall(rf"\b{ENV_PREFIX}[A-Z_]*[A-Z]\b", text):
        check_variable(variable)


def test_the_check_knows_right_from_wrong() -> None:
    check_ours("forebay-sandbox", ["kafka", "tool", "console-producer", "--topic", "t"])
    for wrong in (["submit"], ["submit", "-", "--teir", "high"], ["submit", "-", "--tier", "urgent"], ["dead"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|not one of|invalid"):
            check_ours("forebay", wrong)
    with pytest.raises(AssertionError):
        check_make(["no-such-target"])
