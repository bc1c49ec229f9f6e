"""Kafka's own console tools: main classes in the jars, each run in its own JVM. Starts processes; keeps nothing."""

from __future__ import annotations

import difflib
import subprocess
from typing import TYPE_CHECKING

from forebay_sandbox.errors import ToolError
from forebay_sandbox.kafka.runtime import kafka_runtime
from forebay_schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "configs": "org.apache.kafka.tools.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""Short names, as of the scripts in Kafka's own bin folder. All of these take --bootstrap-server."""

_SERVER_OPTION = "--bootstrap-server"
RUN_SECONDS_MAX = 60.0


def tool_command(tool: str, args: Sequence[str], *, bootstrap_servers: str) -> list[str]:
    """The command line that runs a tool, by its short name or the full name of a main class in the jars.

    A tool of the list is given ``bootstrap_servers`` unless ``args`` names some. Raises UsageError for an unknown name.
    """
    main_class = TOOLS.get(tool, tool)
    if "." not in main_class:
        near = difflib.get_close_matches(tool, TOOLS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(TOOLS)}"
        raise UsageError("tool", f"{tool} is not a tool", fix=f"{hint} (or give a class name with its package)")
    given = any(arg.split("=", 1)[0] in {_SERVER_OPTION, "--help", "--version"} for arg in args)
    server = [_SERVER_OPTION, bootstrap_servers] if main_class in TOOLS.values() and not given else []
    return kafka_runtime().command(main_class, *server, *args, options=("-Xmx256m", "-Dforebay.log.level=WARN"))


def run_tool(
    tool: str,
    args: Sequence[str],
    *,
    bootstrap_servers: str,
    stdin: str = "",
    timeout_seconds: float = RUN_SECONDS_MAX,
) -> str:
    """Runs a tool to its end; returns its stdout. Raises ToolError with its stderr if it fails."""
    command = tool_command(tool, args, bootstrap_servers=bootstrap_servers)
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{tool} did not end within {timeout_seconds:.0f} s") from None
    if done.returncode != 0:
        raise ToolError(f"{tool} ended with status {done.returncode}:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def console_producer(topic: str, lines: Sequence[str], *, bootstrap_servers: str) -> None:
    """Writes one record per line with Kafka's console producer: no key, no headers."""
    run_tool(
        "console-producer",
        # Without acks=all a record could be lost with the leader and the tool would still end well.
        ["--topic", topic, "--command-property", "acks=all"],
        bootstrap_servers=bootstrap_servers,
        stdin="".join(f"{line}\n" for line in lines),
    )
