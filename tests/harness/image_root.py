"""An image's root as a container has it, without a container engine: read-only, process 1 of a process namespace, the
image's own user, entry point and environment, no capability. The network is this machine's. Needs root."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.contained import Contained, contained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from harness.oci_archive import OciArchive

# $0 is the root; the words behind it are the command.
_AS_A_CONTAINER = """
set -eu
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --bind /dev "$0/dev"
mount -o remount,bind,ro "$0"
exec chroot "$0" /usr/bin/setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs --bounding-set=-all \
    --inh-caps=-all "$@"
"""


class ImageRoot:
    """The folder of an unpacked image; runs its commands."""

    def __init__(self, archive: OciArchive, folder: Path) -> None:
        self.archive = archive
        self.folder = folder
        archive.unpack(folder)
        for name in ("dev", "proc"):
            (folder / name).mkdir(exist_ok=True)

    def command(self, *words: str) -> list[str]:
        """The image's command, or ``words`` after its entry point."""
        config = self.archive.config
        user, _, group = config["User"].partition(":")
        script = _AS_A_CONTAINER.format(user=user, group=group)
        namespaces = ["--mount", "--pid", "--fork", "--kill-child"]
        shell = ["/usr/bin/unshare", *namespaces, "--", "/bin/sh", "-c", script, str(self.folder)]
        return [*shell, *config["Entrypoint"], *(words or config.get("Cmd") or ())]

    def run(
        self, *words: str, settings: Mapping[str, str], stdin: str = "", seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """To its end."""
        return subprocess.run(
            self.command(*words),
            env={**self.archive.environment, **settings},
            cwd="/",
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    @contextmanager
    def running(self, *words: str, settings: Mapping[str, str], log_path: Path) -> Iterator[Contained]:
        """Started; killed with the block if it still runs."""
        with contained(self.command(*words), {**self.archive.environment, **settings}, log_path) as running:
            yield running
