"""A token provider as a user writes one: asks the endpoint that a file names, with the credentials in it."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import httpx

VARIABLE = "ASKED_FOR_TOKENS"
"""The environment variable with the file's path."""


def write_asked(path: Path, *, url: str, client: str, secret: str) -> None:
    """Says where tokens are to be got, and as whom."""
    authorization = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()
    path.write_text(json.dumps({"url": url, "authorization": authorization}), encoding="utf-8")


def token() -> tuple[str, float]:
    """A token, and when it expires."""
    asked = json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8"))
    answer = httpx.post(
        asked["url"],
        data={"grant_type": "client_credentials"},
        headers={"Authorization": asked["authorization"]},
        timeout=5,
    )
    given = answer.raise_for_status().json()
    return given["access_token"], time.time() + given["expires_in"]
