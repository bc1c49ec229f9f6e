"""The built-in biz_types, and the path of OpenAI's API for each. Pure."""

from __future__ import annotations

from typing import Final

DEFAULT_PATHS: Final[dict[str, str]] = {
    "chat_completion": "/v1/chat/completions",
    "completion": "/v1/completions",
    "embedding": "/v1/embeddings",
    "response": "/v1/responses",
    "image_generation": "/v1/images/generations",
}
"""The path of each built-in biz_type."""
