"""An image in an OCI archive, read as a registry or a container engine reads it. Reads files; unpacking needs root."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_DELETED = ".wh."


class OciArchive:
    """The one image of one platform in a file that tools/images wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path) as archive:
            index = json.load(_member(archive, "index.json"))
            [entry] = index["manifests"]
            self.digest: str = entry["digest"]
            manifest = json.load(_member(archive, _blob(self.digest)))
            self.layers: list[str] = [layer["digest"] for layer in manifest["layers"]]
            raw = _member(archive, _blob(manifest["config"]["digest"])).read()
        self.whole_config: dict[str, Any] = json.loads(raw)

    @property
    def config(self) -> dict[str, Any]:
        """A container's settings: User, Entrypoint, Cmd, Env, Labels."""
        found: dict[str, Any] = self.whole_config["config"]
        return found

    @property
    def environment(self) -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.config["Env"])

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels, without the prefix that all of ours have."""
        return {name.removeprefix("org.opencontainers.image."): value for name, value in self.config["Labels"].items()}

    @contextmanager
    def layer(self, digest: str) -> Iterator[tarfile.TarFile]:
        """One layer's files, its bytes checked against its digest first."""
        with tarfile.open(self.path) as archive:
            compressed = _member(archive, _blob(digest))
            assert hashlib.file_digest(compressed, "sha256").hexdigest() == digest.partition(":")[2]
            compressed.seek(0)
            with tarfile.open(fileobj=compressed, mode="r:*") as layer:
                yield layer

    def unpack(self, folder: Path) -> None:
        """Puts the layers over each other, with owners, modes and times."""
        for digest in self.layers:
            with self.layer(digest) as layer:
                kept = []
                for member in layer:
                    # An engine makes these itself; without the right to make devices they would stop the rest.
                    if member.isdev() and not member.isfifo():
                        continue
                    path = Path(member.name)
                    if path.name.startswith(_DELETED):
                        _remove(folder / path.parent / path.name.removeprefix(_DELETED))
                    else:
                        kept.append(member)
                layer.extractall(folder, members=kept, numeric_owner=True, filter="fully_trusted")  # noqa: S202


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            _remove(child)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _member(archive: tarfile.TarFile, name: str) -> io.BufferedReader:
    found = archive.extractfile(name)
    assert isinstance(found, io.BufferedReader), f"{name} is no file"
    return found
