"""The shape of an endpoint's answers, by its path."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from forebay_schemas.contract.biz_types import DEFAULT_PATHS
from forebay_worker.answers.endpoints import MANY_CHOICES, Shape, choices_asked, choices_in, shape_of

CHAT, COMPLETION, EMBEDDING = Shape.CHAT, Shape.COMPLETION, Shape.EMBEDDING
RESPONSE, IMAGE, OTHER = Shape.RESPONSE, Shape.IMAGE, Shape.OTHER


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", CHAT),
        ("/openai/deployments/x/chat/completions?api-version=2024-10-21", CHAT),
        ("/v1/completions", COMPLETION),
        ("/v1/completions/", COMPLETION),
        ("/v1/embeddings", EMBEDDING),
        ("/v1/responses", RESPONSE),
        ("/v1/images/generations", IMAGE),
        ("/v1/rerank", OTHER),
        ("/completion", OTHER),
        ("/api/chat", OTHER),
        ("", OTHER),
    ],
)
def test_the_path_tells_the_shape(path: str, shape: Shape) -> None:
    assert shape_of(path) is shape


def test_each_default_path_has_a_known_shape() -> None:
    assert [shape_of(path) for path in DEFAULT_PATHS.values()] == [CHAT, COMPLETION, EMBEDDING, RESPONSE, IMAGE]


@pytest.mark.parametrize(
    ("payload", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": None}, 1),
        ({"n": "3"}, 1),
        ({"n": True}, 1),
        ({"n": -1}, 1),
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
    ],
)
def test_a_request_tells_how_many_choices_it_asks_for(payload: dict[str, Any], choices: int) -> None:
    assert choices_asked(payload) == choices
    assert choices_in(json.dumps(payload).encode()) == choices


@pytest.mark.parametrize(
    ("payload", "choices"),
    [
        (b'{"n": 2, "messages": "' + b"x" * 1_000_000 + b'"}', 2),
        (b'{"prompt": "' + b"x" * 1_000_000 + b'"}', 1),
        (b'{"prompt": [' + b"1," * 500_000 + b"1]}", MANY_CHOICES),
        (b'{"n": ' + b"9" * 1_000_000 + b"}", 1),
        (b'{"n": ' + b"9" * 100_000 + b"}", 1),
        (b'{"n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 1),
        (b'{"n": 2', 1),
        (b"[1]", 1),
        (b"\xff", 1),
    ],
)
def test_choices_are_counted_of_any_bytes_and_cost_little(payload: bytes, choices: int) -> None:
    tracemalloc.start()
    try:
        assert choices_in(payload) == choices
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8_000_000
