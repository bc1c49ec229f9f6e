"""Files of ``name=value`` lines, with values that may come from other files. Reads them; never shows a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from forebay_schemas.errors import UsageError

# As in Kafka's own DirectoryConfigProvider (KIP-632): a mounted Kubernetes Secret is such a folder.
_FROM_FILE: Final = re.compile(r"\$\{directory:(?P<folder>[^:}]+):(?P<file>[^:}/]+)\}")
_SECRET_BYTES_MAX: Final = 64 * 1024


def property_lines(path: Path, refuse: Callable[[str, str], UsageError]) -> Iterator[tuple[str, str, str]]:
    """Where each line is (``path:number``), its name and its value; ``#`` and ``!`` begin comments. UTF-8.

    Values are taken as they stand, without escapes or continuation lines; ``${directory:/a/folder:file}`` is what that
    file holds, without the newline at its end. Raises what ``refuse`` makes of a problem and its fix, for what is no
    such line or is there twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise refuse(f"{path}: {why}", "name a readable text file") from None
    seen = set()
    for number, raw in enumerate(text.split("\n"), start=1):
        line, where = raw.strip(), f"{path}:{number}"
        if not line or line[0] in "#!":
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise refuse(f"{where} is not name=value", "correct that line")
        if not line.isprintable():
            raise refuse(f"{where} holds a control character", "correct that line")
        if name in seen:
            raise refuse(f"{where} sets {name} a second time", "remove one of the lines")
        seen.add(name)
        try:
            resolved = from_file(value)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise refuse(f"{where} takes {name} from {value}: {why}", "name a folder and a file in it") from None
        yield where, name, resolved


def is_from_file(value: str) -> bool:
    """Whether the value refers to a file."""
    return value.startswith("${directory:")


def from_file(value: str) -> str:
    """The value, or the content of the file in ``${directory:/a/folder:file}``. Raises ``OSError`` and
    ``ValueError``."""
    if not is_from_file(value):
        return value
    reference = _FROM_FILE.fullmatch(value)
    if reference is None:
        raise ValueError("it is not ${directory:/a/folder:file}")
    with Path(reference["folder"], reference["file"]).open("rb") as file:
        content = file.read(_SECRET_BYTES_MAX + 1)
    if len(content) > _SECRET_BYTES_MAX:
        raise ValueError("it is too large for a secret")
    return content.decode().removesuffix("\n").removesuffix("\r")
