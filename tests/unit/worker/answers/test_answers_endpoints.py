"""The shape of an endpoint's answers, told by its path."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_worker.answers.endpoints import DEFAULT_PATHS, Shape, choices_asked, shape_of

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
