"""Predicted tokens of a request. Pure."""

from __future__ import annotations

import msgspec


class Prediction(msgspec.Struct, frozen=True, gc=False):
    """Tokens that a request is expected to take; ``keys``: the classes that learn from its answer, narrowest first.

    ``text_bytes``: of its payload, without the ``media`` (images, sounds, files) that lie in it in base64."""

    prompt_tokens: int
    output_tokens: int
    output_tokens_min: int
    cap_tokens: int | None
    text_bytes: int
    media: int
    keys: tuple[tuple[object, ...], ...]

    @property
    def model(self) -> str | None:
        model = self.keys[0][0]
        assert model is None or isinstance(model, str)
        return model
