"""Submit inference requests to Forebay and wait for their outcomes.

with Producer(bootstrap_servers="127.0.0.1:9092", pool="default") as producer:
    accepted = producer.submit({"biz_type": "chat_completion", "priority": "high", "payload": {...}})
    accepted.expedite()  # or accepted.cancel()
    result = accepted.outcome(timeout_seconds=30)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_producer.library import *  # noqa: F403 - `library` lists them
    from forebay_producer.library import __all__ as __all__


def __getattr__(name: str) -> object:
    """Imports the library on first use of one of its names: `forebay --help` then starts in a third of the time."""
    library = import_module("forebay_producer.library")
    if name != "__all__" and name not in library.__all__ and name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(library, name))
