"""Predicts a request's prompt and output tokens, learnt from the engine's reports. Pure.

A client's ``max_tokens`` is a cap and no prediction: many set 2048 everywhere and use a tenth of it. The share of the
cap that was used is learnt, so a meaningful cap counts and a meaningless one does not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Any

import msgspec

from forebay_schemas.contract.envelope import Request, payload_hints
from forebay_worker.request.prediction import Prediction

BYTES_PER_TOKEN = 4.0
"""English text in JSON, before the first answer with a count."""

MEDIA_TOKENS = 500.0
"""Prompt tokens of an image, a sound or a file, whatever its bytes, before the first answer with a count: engines cut
it into pieces of a fixed size (85 to 1,500 tokens an image, by model)."""

MEDIA_ALPHA = 0.2
"""A mean of about five answers: clients of one model send similar media."""

PROMPT_ALPHA = 0.05
"""A mean of about twenty answers: texts differ in their tokens per byte by language, and chats by their share of
JSON."""

MEDIA_BYTES_MIN = 256
"""Less data counts as text: no image is smaller, and most payloads need no search."""

_MEDIA_MARKS = ((b";base64,", b""), (b'"input_audio":', b'"data":'))
"""Text before the data, and the key between."""

OUTPUT_TOKENS_UNKNOWN = 128
SAMPLES_MAX = 128
"""Enough for a quantile within four of a hundred, and few enough to follow changes of the clients."""

SAMPLES_MIN = 8
"""A class with fewer answers uses the next wider one."""

CLASSES_MAX = 1_024
"""Clients choose names of models and biz_types; those longest without an answer are forgotten. Some 12 MB in all."""

MODEL_CHARS_MAX = 200
"""As for names in the envelope; a longer one is cut, and its beginning gives the class."""

OUTPUT_QUANTILE = 0.4
OUTPUT_QUANTILE_MIN = 0.25
"""A request that would be late even if it were one of its class's shortest is dropped; tuned on the pacing
benchmark."""

CAP_QUANTILE_MAX = 1 - SAMPLES_MIN / SAMPLES_MAX
"""With more answers than these of such a cap, its own class is sufficient."""

CAP_REACH = 4
"""How far beyond the caps of its answers a class's share is trusted. Tuned on the pacing benchmark: less wastes the
engine on long requests that end late."""


class RecentQuantile:
    """A quantile of the last `SAMPLES_MAX` values; a sample costs O(SAMPLES_MAX)."""

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._recent) == SAMPLES_MAX:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def at(self, share: float) -> float:
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]


class _Class:
    """Recent answers of a class: shares of their caps, or tokens where there was none. ``caps``: of a class for any
    cap."""

    __slots__ = ("caps", "shares")

    def __init__(self) -> None:
        self.shares = RecentQuantile()
        self.caps = RecentQuantile()


class Predictor:
    """Learns per model, biz_type, prompt-length class and, where it narrows anything, class of ``max_tokens``."""

    def __init__(self) -> None:
        self._tokens_per_byte: OrderedDict[str | None, float] = OrderedDict()
        self._tokens_per_medium: OrderedDict[str | None, float] = OrderedDict()
        self._classes: OrderedDict[tuple[object, ...], _Class] = OrderedDict()

    @property
    def classes(self) -> int:
        """Number of classes in memory."""
        return len(self._classes) + len(self._tokens_per_byte) + len(self._tokens_per_medium)

    def predict(self, request: Request) -> Prediction:
        """The prediction before the request runs. Never raises: a payload without information gives the defaults."""
        hints = payload_hints(request)
        model = hints.model if hints.model is None else hints.model[:MODEL_CHARS_MAX]
        media, media_bytes = media_in(request.payload)
        text_bytes = len(memoryview(request.payload)) - media_bytes
        tokens = text_bytes * self._tokens_per_byte.get(model, 1 / BYTES_PER_TOKEN)
        if media:
            tokens += media * self._tokens_per_medium.get(model, MEDIA_TOKENS)
        prompt = max(1, round(tokens))
        cap = hints.max_completion_tokens or hints.max_tokens
        wide = (model, request.biz_type, cap is None)
        # Octaves: a class spans a factor of two.
        middle = (*wide, prompt.bit_length())
        keys: tuple[tuple[object, ...], ...] = (middle, wide)
        if cap is not None:
            keys = ((*middle, cap.bit_length()), *keys)
        output, output_min = self._output(keys, cap)
        return Prediction(prompt, output, output_min, cap, text_bytes, media, keys)

    def learn(self, prediction: Prediction, *, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Learns from the engine's report on a predicted request; None where it reported nothing."""
        if prompt_tokens and prediction.text_bytes:
            self._learn_prompt(prediction, prompt_tokens)
        if output_tokens is None:
            return
        # Each of several completions (``n``) keeps to the cap, and the engine works on all of them together.
        share = min(1.0, output_tokens / prediction.cap_tokens) if prediction.cap_tokens else float(output_tokens)
        for width, key in enumerate(prediction.keys):
            known_class = self._classes.pop(key, None) or _Class()
            known_class.shares.add(share)
            if prediction.cap_tokens and width:
                known_class.caps.add(prediction.cap_tokens)
            self._classes[key] = known_class
        _bound(self._classes)

    def _learn_prompt(self, prediction: Prediction, prompt_tokens: int) -> None:
        """Learns tokens per byte of a text prompt, or the tokens of its media; from a prompt with text and media
        neither."""
        model, per_byte = prediction.model, self._tokens_per_byte
        if prediction.media:
            text_tokens = prediction.text_bytes * per_byte.get(model, 1 / BYTES_PER_TOKEN)
            seen = max(0.0, prompt_tokens - text_tokens) / prediction.media
            _approach(self._tokens_per_medium, model, seen, MEDIA_ALPHA)
        else:
            _approach(per_byte, model, prompt_tokens / prediction.text_bytes, PROMPT_ALPHA)

    def _output(self, keys: tuple[tuple[object, ...], ...], cap: int | None) -> tuple[int, int]:
        """Expected output, and output in a lucky case."""
        for width, key in enumerate(keys):
            known = self._classes.get(key)
            if known is None or len(known.shares) < SAMPLES_MIN:
                continue
            unit: float = cap or 1
            if cap and width:
                # For a cap far beyond those of the answers the used share is unknown: it predicts no more than they do.
                unit = min(cap, CAP_REACH * known.caps.at(CAP_QUANTILE_MAX))
            return (
                max(1, round(known.shares.at(OUTPUT_QUANTILE) * unit)),
                max(1, round(known.shares.at(OUTPUT_QUANTILE_MIN) * unit)),
            )
        # No request is dropped for an unknown length.
        return OUTPUT_TOKENS_UNKNOWN if cap is None else min(cap, OUTPUT_TOKENS_UNKNOWN), 1


def media_in(payload: msgspec.Raw) -> tuple[int, int]:
    """Number of base64 media in a payload, and the bytes of their data: ``data:`` URLs, and `input_audio`.

    A byte of media is a hundredth of a token or less, a byte of text a quarter.
    """
    if len(memoryview(payload)) < MEDIA_BYTES_MIN:
        return 0, 0
    body = bytes(payload)
    count = data_bytes = 0
    for mark, before_data in _MEDIA_MARKS:
        at = body.find(mark)
        while at >= 0:
            begins = at + len(mark) if not before_data else _after(body, before_data, at + len(mark))
            ends = body.find(b'"', begins) if begins >= 0 else -1
            if ends < 0:
                break
            if ends - begins >= MEDIA_BYTES_MIN:
                count += 1
                data_bytes += ends - begins
            at = body.find(mark, ends)
    return count, data_bytes


def _after(body: bytes, key: bytes, start: int) -> int:
    """Position where the text of a key begins; -1 if there is none."""
    at = body.find(key, start)
    quote = body.find(b'"', at + len(key)) if at >= 0 else -1
    return quote + 1 if quote >= 0 else -1


def _approach(known: OrderedDict[str | None, float], model: str | None, seen: float, alpha: float) -> None:
    before = known.pop(model, None)
    known[model] = seen if before is None else before + alpha * (seen - before)
    _bound(known)


def _bound(known: OrderedDict[Any, Any]) -> None:
    while len(known) > CLASSES_MAX:
        known.popitem(last=False)
