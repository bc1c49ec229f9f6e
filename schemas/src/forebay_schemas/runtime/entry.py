"""The entry points of the three commands. Ctrl-C during their imports ends them without a traceback.

Here, as this package alone imports nothing. Prepares the standard streams. Sets signal handlers: for SIGINT during
imports, for SIGTERM when the command is the first process of a container.
"""

import os
import signal
import sys
from importlib import import_module
from types import ModuleType

from forebay_schemas.runtime.streams import flush_stdout, prepare_streams

EXIT_INTERRUPTED = 130
"""The shell's status of a program ended by SIGINT (2): 128 more."""

EXIT_TERMINATED = 143
"""Likewise for SIGTERM (15)."""

_FIRST_PROCESS = 1

_KAFKA_CLIENT = "cimpl."


def forebay() -> None:
    """The command `forebay`."""
    _run("forebay_producer.cli.app")


def forebay_worker() -> None:
    """The command `forebay-worker`."""
    _run("forebay_worker.cli")


def forebay_sandbox() -> None:
    """The command `forebay-sandbox`."""
    _run("forebay_sandbox.cli")


def import_for_command(*modules: str) -> ModuleType:
    """Imports modules for a command; returns the last one. Ctrl-C meanwhile ends the process with 130."""
    # An exception raised within the import system may be printed and ignored.
    heeds_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds_ctrl_c:
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    imported = [import_module(module) for module in modules]
    if heeds_ctrl_c:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return imported[-1]


def _run(module: str) -> None:
    prepare_streams()
    try:
        if os.getpid() == _FIRST_PROCESS:
            # The kernel ignores signals without a handler for the first process of a container: a command would outlive
            # its pod's grace period. A command with its own shutdown replaces this handler.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))
        import_for_command(module).main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except SystemError as error:
        if _KAFKA_CLIENT not in str(error):
            raise
        # Ctrl-C came while librdkafka called a log or error callback: confluent-kafka drops the exception, and CPython
        # then reports the call. Those callbacks raise nothing else.
        sys.exit(EXIT_INTERRUPTED)
    finally:
        flush_stdout()
