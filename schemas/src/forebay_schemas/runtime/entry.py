"""Where the three commands begin: what imports them takes seconds, and Ctrl-C meanwhile is no reason for a traceback.

Here, since this package alone imports nothing. Prepares the standard streams. Sets signal handlers: for SIGINT while a
command is imported, for SIGTERM where the command is the first process of a container.
"""

import os
import signal
import sys
from importlib import import_module
from types import ModuleType

from forebay_schemas.runtime.streams import flush_stdout, prepare_streams

EXIT_INTERRUPTED = 130
"""What shells say of a program that SIGINT (2) has ended: 128 more."""

EXIT_TERMINATED = 143
"""Likewise of SIGTERM (15)."""

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
    """Imports what a command needs; returns the last of the modules. Ctrl-C meanwhile ends the process with 130."""
    # Raised within the import system, an exception may be printed and forgotten.
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
            # The kernel keeps from the first process of a container what it has no handler for: a command would outlive
            # its pod's grace period. One that has more to do at its end puts its own handler in the place of this.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))
        import_for_command(module).main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except SystemError as error:
        if _KAFKA_CLIENT not in str(error):
            raise
        # Ctrl-C came while librdkafka had called a log or error callback: confluent-kafka drops the exception, and
        # CPython then complains of the call. Those callbacks raise nothing else.
        sys.exit(EXIT_INTERRUPTED)
    finally:
        flush_stdout()
