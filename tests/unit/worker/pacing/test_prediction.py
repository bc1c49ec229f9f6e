"""Prediction: what a request's size and cap say, what answers teach, and what nobody's payload can do to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.envelope import Request
from forebay_worker.pacing.prediction import (
    CLASSES_MAX,
    MEDIA_TOKENS,
    MODEL_CHARS_MAX,
    OUTPUT_TOKENS_UNKNOWN,
    SAMPLES_MAX,
    SAMPLES_MIN,
    Predictor,
    RecentQuantile,
)


def request(payload: dict[str, Any] | bytes | None = None, *, biz_type: str = "chat_completion") -> Request:
    raw = payload if isinstance(payload, bytes) else msgspec.json.encode(payload or {})
    return Request(request_id="r-1", biz_type=biz_type, payload=msgspec.Raw(raw))


def chat(size_bytes: int = 4000, **fields: Any) -> Request:
    """A payload of this many bytes in all."""
    whole: dict[str, Any] = {"model": "m", **fields, "prompt": ""}
    whole["prompt"] = "x" * (size_bytes - len(msgspec.json.encode(whole)))
    return request(whole)


def taught(predictor: Predictor, asked: Request, *outputs: int, prompt_tokens: int | None = None) -> Predictor:
    for output in outputs:
        predictor.learn(predictor.predict(asked), prompt_tokens=prompt_tokens, output_tokens=output)
    return predictor


# The prompt


def test_a_prompt_is_a_token_for_four_bytes_until_answers_say_better() -> None:
    predictor = Predictor()
    assert predictor.predict(chat(4000)).prompt_tokens == 1000
    taught(predictor, chat(4000), 10, prompt_tokens=2000)
    assert predictor.predict(chat(6000)).prompt_tokens == 3000


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 6_000_000}}
SOUND = {"type": "input_audio", "input_audio": {"format": "wav", "data": "A" * 100_000}}
PAPER = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "A" * 10_000}}
TEXT = {"type": "text", "text": "x" * 4000}


def parts(*content: dict[str, Any]) -> Request:
    return request({"model": "m", "messages": [{"role": "user", "content": list(content)}]})


@pytest.mark.parametrize(
    ("content", "media"),
    [((IMAGE,), 1), ((IMAGE, TEXT, IMAGE), 2), ((SOUND, TEXT), 1), ((PAPER,), 1), ((PAPER, SOUND, IMAGE), 3)],
)
def test_what_lies_in_a_prompt_in_base64_is_no_text(content: tuple[dict[str, Any], ...], media: int) -> None:
    predictor = Predictor()
    text = parts(*(part for part in content if part is TEXT))
    expected = predictor.predict(text).prompt_tokens + media * MEDIA_TOKENS
    assert predictor.predict(parts(*content)).prompt_tokens == pytest.approx(expected, abs=100)


def test_an_image_that_a_slash_is_escaped_in_is_one_too() -> None:
    payload = msgspec.json.encode({"url": "data:image/png;base64,iV/BOR" + "w0K/Ggo" * 1000}).replace(b"/", b"\\/")
    assert Predictor().predict(request(payload)).prompt_tokens < MEDIA_TOKENS + 50


@pytest.mark.parametrize(
    "payload",
    [
        b'{"text": ";base64,' + b"x" * 1000,
        b'{"input_audio":' + b"x" * 1000,
        b'{"input_audio":{"data":' + b"1" * 1000 + b"}}",
        b'{"text": "' + b";base64, and so on " * 100 + b'"}',
        b'{"text":' + b'";base64,"' * 100,
    ],
)
def test_what_only_looks_like_an_image_is_no_trouble(payload: bytes) -> None:
    assert 1 <= Predictor().predict(request(payload)).prompt_tokens <= len(payload) / 4 + MEDIA_TOKENS + 1


def test_what_images_take_is_learnt_and_teaches_nothing_of_text() -> None:
    predictor = Predictor()
    taught(predictor, parts(IMAGE), *[10] * 20, prompt_tokens=1_425)
    assert predictor.predict(parts(IMAGE, IMAGE)).prompt_tokens == pytest.approx(2 * 1_400, abs=50)
    assert predictor.predict(chat(4000)).prompt_tokens == 1000
    taught(predictor, chat(4000), 10, prompt_tokens=2000)
    assert predictor.predict(chat(4000)).prompt_tokens == 2000


def test_an_engine_that_counts_a_token_for_an_image_is_believed() -> None:
    """As fake engines do: 6 MB were taken for 1.5 million tokens, so that one ran at a time."""
    predictor = Predictor()
    taught(predictor, parts(IMAGE), *[10] * 40, prompt_tokens=1)
    assert predictor.predict(parts(IMAGE)).prompt_tokens < 50


def test_bytes_per_token_are_learnt_for_each_model_over_twenty_answers() -> None:
    predictor = Predictor()
    taught(predictor, chat(4000), 10, prompt_tokens=1000)
    taught(predictor, chat(4000), *[10] * 20, prompt_tokens=2000)
    assert 1500 < predictor.predict(chat(4000)).prompt_tokens < 1700
    taught(predictor, chat(4000), *[10] * 100, prompt_tokens=2000)
    assert predictor.predict(chat(4000)).prompt_tokens == pytest.approx(2000, rel=0.01)
    assert predictor.predict(chat(4000, model="other")).prompt_tokens == 1000


# The output


@pytest.mark.parametrize(
    ("case", "asked", "output_tokens"),
    [
        ("no cap", chat(), OUTPUT_TOKENS_UNKNOWN),
        ("a cap above what is usual", chat(max_tokens=2048), OUTPUT_TOKENS_UNKNOWN),
        ("a lower cap", chat(max_tokens=16), 16),
        ("the newer name wins", chat(max_tokens=16, max_completion_tokens=32), 32),
        ("no cap at all: 0", chat(max_tokens=0), OUTPUT_TOKENS_UNKNOWN),
        ("no cap at all: text", chat(max_tokens="16"), OUTPUT_TOKENS_UNKNOWN),
        ("a huge one", chat(max_tokens=10**9), OUTPUT_TOKENS_UNKNOWN),
        ("an impossible one", chat(max_tokens=10**30), OUTPUT_TOKENS_UNKNOWN),
        ("no JSON that anyone could read", request(b"{"), OUTPUT_TOKENS_UNKNOWN),
    ],
)
def test_before_any_answer_a_usual_length_is_expected_and_nothing_is_dropped_for_it(
    case: str, asked: Request, output_tokens: int
) -> None:
    prediction = Predictor().predict(asked)
    assert prediction.output_tokens == output_tokens, case
    assert prediction.output_tokens_min == 1, case


def test_a_cap_that_all_set_says_nothing_and_the_usual_use_of_it_is_expected() -> None:
    """2048 everywhere, a tenth of it used."""
    predictor = taught(Predictor(), chat(max_tokens=2048), *range(105, 305))
    prediction = predictor.predict(chat(max_tokens=2048))
    recent = list(range(305 - SAMPLES_MAX, 305))
    assert prediction.output_tokens == recent[int(0.40 * SAMPLES_MAX)]
    assert prediction.output_tokens_min == recent[int(0.25 * SAMPLES_MAX)]


def test_a_cap_that_means_something_is_believed() -> None:
    predictor = Predictor()
    for cap in (20, 100, 400, 1600):
        taught(predictor, chat(max_tokens=cap), *[cap // 2] * SAMPLES_MIN)
    for cap in (25, 120, 500, 1900):
        assert predictor.predict(chat(max_tokens=cap)).output_tokens == pytest.approx(cap / 2, abs=1)


@pytest.mark.parametrize("cap", [4096, 100_000, 10**9])
def test_a_cap_beyond_all_that_was_seen_is_no_reason_to_expect_much_more(cap: int) -> None:
    """Else the first client to set 100,000 would have all its requests dropped as too long for their deadlines."""
    predictor = taught(Predictor(), chat(max_tokens=2048), *[200] * SAMPLES_MAX)
    prediction = predictor.predict(chat(max_tokens=cap))
    assert prediction.output_tokens <= 800
    taught(predictor, chat(max_tokens=cap), *[200] * SAMPLES_MIN)
    assert predictor.predict(chat(max_tokens=cap)).output_tokens == pytest.approx(200, abs=1)


def test_one_answer_with_a_huge_cap_changes_nothing_for_the_next() -> None:
    predictor = taught(Predictor(), chat(max_tokens=2048), *[200] * SAMPLES_MAX)
    taught(predictor, chat(max_tokens=10**9), 200)
    assert predictor.predict(chat(max_tokens=10**9)).output_tokens <= 800
    assert predictor.predict(chat(max_tokens=2048)).output_tokens == 200


def test_no_request_is_expected_to_exceed_its_cap_even_after_several_completions_at_once() -> None:
    """With n = 8 the usage counts all eight, but they are decoded side by side."""
    predictor = taught(Predictor(), chat(max_tokens=100), *[800] * SAMPLES_MIN)
    assert predictor.predict(chat(max_tokens=100)).output_tokens == 100


def test_classes_of_few_answers_ask_the_next_wider_one() -> None:
    predictor = taught(Predictor(), chat(1000), *[50] * SAMPLES_MIN)
    taught(predictor, chat(100_000), *[500] * (SAMPLES_MIN - 1))
    assert predictor.predict(chat(100_000)).output_tokens == 50, "of the model and biz_type, whatever the prompt"
    taught(predictor, chat(100_000), 500)
    assert predictor.predict(chat(100_000)).output_tokens == 500
    assert predictor.predict(chat(1000)).output_tokens == 50


@pytest.mark.parametrize(
    ("case", "other"),
    [
        ("another model", chat(1000, model="other")),
        ("no model", request({"prompt": "x" * 1000})),
        ("another biz_type", request({"model": "m", "prompt": "x" * 1000}, biz_type="translation")),
        ("with a cap", chat(1000, max_tokens=2048)),
    ],
)
def test_what_one_class_learns_says_nothing_of_others(case: str, other: Request) -> None:
    predictor = taught(Predictor(), chat(1000), *[50] * SAMPLES_MAX)
    assert predictor.predict(other).output_tokens == OUTPUT_TOKENS_UNKNOWN, case


def test_what_clients_change_is_followed() -> None:
    predictor = taught(Predictor(), chat(), *[50] * 1000, *[500] * SAMPLES_MAX)
    assert predictor.predict(chat()).output_tokens == 500


def test_an_answer_without_usage_teaches_nothing() -> None:
    predictor = Predictor()
    for _ in range(SAMPLES_MAX):
        predictor.learn(predictor.predict(chat()), prompt_tokens=None, output_tokens=None)
    assert predictor.predict(chat()).output_tokens == OUTPUT_TOKENS_UNKNOWN
    assert predictor.predict(chat(4000)).prompt_tokens == 1000


# Whatever comes


def test_names_from_outside_take_no_more_than_their_room() -> None:
    """Anyone may send a model's name; the classes that have gone longest without an answer are forgotten."""
    predictor = Predictor()
    usual = chat()
    for number in range(CLASSES_MAX + 100):
        taught(predictor, request({"model": f"{number}-{'x' * 10_000}"}), 10, prompt_tokens=3)
        taught(predictor, usual, 77)
    assert predictor.classes <= 2 * CLASSES_MAX
    assert predictor.predict(usual).output_tokens == 77, "in use, so it is kept"
    key = predictor.predict(request({"model": "y" * 1_000_000})).keys[0][0]
    assert isinstance(key, str)
    assert len(key) == MODEL_CHARS_MAX


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
payloads = st.builds(
    lambda model, cap, newer, more: {"model": model, "max_tokens": cap, "max_completion_tokens": newer, **more},
    json_values,
    st.integers(-1, 10**10) | json_values,
    st.integers(-1, 10**10) | json_values,
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
).map(lambda whole: msgspec.json.encode(whole, enc_hook=str))
counts = st.none() | st.integers(0, 10**7)


@given(
    st.lists(
        st.tuples(payloads | st.binary(max_size=30).map(lambda tail: b"{" + tail), counts, counts),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_the_payload_and_the_usage_are_predictions_stay_within_reason(
    told: list[tuple[bytes, int | None, int | None]],
) -> None:
    predictor = Predictor()
    for payload, prompt_tokens, output_tokens in told:
        prediction = predictor.predict(request(payload))
        assert prediction.prompt_tokens >= 1
        assert 1 <= prediction.output_tokens_min <= prediction.output_tokens <= 10**9
        assert prediction.cap_tokens is None or prediction.output_tokens <= prediction.cap_tokens
        predictor.learn(prediction, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=2 * SAMPLES_MAX), st.floats(0, 1))
def test_a_quantile_is_that_of_the_last_values(values: list[int], share: float) -> None:
    quantile = RecentQuantile()
    for value in values:
        quantile.add(value)
    recent = sorted(values[-SAMPLES_MAX:])
    assert len(quantile) == len(recent)
    assert quantile.at(share) == recent[min(int(share * len(recent)), len(recent) - 1)]
