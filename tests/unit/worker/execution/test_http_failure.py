"""The meaning of each refusal for its request and for the backend."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import judge
from forebay_worker.answers.verdict import Failed
from forebay_worker.execution.answer_body import ANSWER_LIMITS
from forebay_worker.execution.http_failure import failure_of, retry_after_seconds
from forebay_worker.request.retry_policy import RetryStatuses
from forebay_worker.request.work import Failure, FailureScope
from forebay_worker.settings import WorkerSettings

BY_DEFAULT = WorkerSettings.model_fields["retry_statuses"].default


def refused(
    status: int, body: bytes = b" the engine's words \n", *, listed: list[int | str] = BY_DEFAULT, location: str = ""
) -> Failure:
    verdict = judge(shape=Shape.CHAT, status=status, content_type="text/plain", body=body, limits=ANSWER_LIMITS)
    assert isinstance(verdict, Failed)
    return failure_of(
        verdict,
        status=status,
        location=location or None,
        retry_after_seconds=2.0,
        retry_statuses=RetryStatuses(listed),
    )


@pytest.mark.parametrize(
    ("status", "counts_as", "reason", "of_backend", "may_retry"),
    [
        (429, 429, Reason.BACKEND_OVERLOADED, True, True),
        (502, 502, Reason.BACKEND_UNAVAILABLE, True, True),
        (503, 503, Reason.BACKEND_UNAVAILABLE, True, True),
        (529, 529, Reason.BACKEND_UNAVAILABLE, True, True),
        (408, 408, Reason.BACKEND_TIMEOUT, False, True),
        (425, 425, Reason.BACKEND_REJECTED, False, True),
        (400, 400, Reason.BACKEND_REJECTED, False, False),
        (401, 401, Reason.BACKEND_REJECTED, False, False),
        (403, 403, Reason.BACKEND_REJECTED, False, False),
        (404, 404, Reason.BACKEND_REJECTED, False, False),
        (413, 413, Reason.BACKEND_REJECTED, False, False),
        (422, 422, Reason.BACKEND_REJECTED, False, False),
        (499, 499, Reason.BACKEND_REJECTED, False, False),
        (500, 500, Reason.BACKEND_ERROR, False, True),
        (501, 501, Reason.BACKEND_REJECTED, False, False),
        (504, 504, Reason.BACKEND_TIMEOUT, False, True),
        # text-generation-inference's word for a generation that failed.
        (424, 500, Reason.BACKEND_ERROR, False, True),
        # Of a proxy: as the engine's own of the same meaning.
        (520, 502, Reason.BACKEND_UNAVAILABLE, True, True),
        (521, 502, Reason.BACKEND_UNAVAILABLE, True, True),
        (522, 502, Reason.BACKEND_UNAVAILABLE, True, True),
        (523, 502, Reason.BACKEND_UNAVAILABLE, True, True),
        (530, 502, Reason.BACKEND_UNAVAILABLE, True, True),
        (524, 504, Reason.BACKEND_TIMEOUT, False, True),
        # Unknown: as the first of their class.
        (505, 500, Reason.BACKEND_ERROR, False, True),
        (507, 500, Reason.BACKEND_ERROR, False, True),
        (599, 500, Reason.BACKEND_ERROR, False, True),
        (204, 204, Reason.BACKEND_BAD_RESPONSE, False, True),
        (304, 304, Reason.BACKEND_BAD_RESPONSE, False, True),
    ],
)
def test_what_each_status_means(status: int, counts_as: int, reason: Reason, of_backend: bool, may_retry: bool) -> None:
    failure = refused(status)
    assert (failure.http_status, failure.reason, failure.of_backend, failure.may_retry) == (
        counts_as,
        reason,
        of_backend,
        may_retry,
    )
    assert failure.reached
    assert failure.error.startswith(f"HTTP {status}")
    assert failure.retry_after_seconds == 2.0, "a retry obeys it too"
    assert (failure.scope is FailureScope.OVERLOAD) is (counts_as in (429, 503, 529))


@pytest.mark.parametrize(
    ("listed", "tried_again", "not_tried_again"),
    [
        ([425], (425,), (500, 503, 429, 507)),
        (["5xx"], (500, 501, 503, 507, 524, 599), (429, 400)),
        (["4xx"], (400, 401, 429, 499), (500, 503)),
        ([429, "5xx"], (429, 500, 524), (400, 408)),
        ([524], (524,), (504, 520)),
        # An unknown status is what it counts as.
        ([500, 502], (500, 507, 502, 520), (503, 504, 524)),
        ([], (), (429, 500, 503, 524)),
    ],
)
def test_a_list_of_ones_own_says_what_is_tried_again(
    listed: list[int | str], tried_again: tuple[int, ...], not_tried_again: tuple[int, ...]
) -> None:
    assert [refused(status, listed=listed).may_retry for status in tried_again] == [True] * len(tried_again)
    assert [refused(status, listed=listed).may_retry for status in not_tried_again] == [False] * len(not_tried_again)


def test_the_engines_words_are_cut_and_may_be_no_text() -> None:
    error = refused(500, b"\xff" + b"x" * 10_000).error
    assert len(error) < 2_100
    assert error.startswith("HTTP 500: \ufffdx")


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://other.example/v1/chat", "https://other.example/v1/chat"),
        ("https://user:s3cret@other.example/", "https://other.example/"),
        ("//user:s3cret@other.example/x", "//other.example/x"),
        ("/login?next=%2Fv1", "/login?next=%2Fv1"),
        ("http://[broken", "what is no URL"),
        ("https://e/" + "x" * 1000, "https://e/" + "x" * 290),
        ("", "nowhere (no Location)"),
    ],
)
def test_a_redirect_names_where_it_leads_without_a_password(location: str, shown: str) -> None:
    failure = refused(307, b"<html>moved</html>", location=location)
    assert failure.error == f"HTTP 307: redirects to {shown}; redirects are not followed"
    assert (failure.reason, failure.http_status) == (Reason.BACKEND_BAD_RESPONSE, 307)


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("retry_after", "date", "seconds"),
    [
        (None, DATE, None),
        ("7", None, 7.0),
        (" 7 ", None, 7.0),
        ("0", None, 0.0),
        ("1.5", None, 1.5),
        ("99999999999999999999", None, 86_400.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", DATE, 30.0),
        ("Wednesday, 21-Oct-15 07:29:00 GMT", DATE, 60.0),
        ("Wed Oct 21 07:28:10 2015", "Wed Oct 21 07:28:00 2015", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", DATE, 0.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", None, None),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "today", None),
        # One with a zone and one without cannot be compared.
        ("Wed Oct 21 07:28:10 2015", DATE, None),
        ("soon", DATE, None),
        ("", DATE, None),
        ("-5", DATE, None),
        ("nan", DATE, None),
        ("inf", DATE, None),
        ("1e3", DATE, None),
        ("²", DATE, None),
    ],
)
def test_both_forms_of_retry_after_are_read(retry_after: str | None, date: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(retry_after, date) == seconds


# What the result says of it.


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b' {"error": {"code": "c", "param": "p"}}\r\n', b'{"error": {"code": "c", "param": "p"}}'),
        (b"\xef\xbb\xbf[1]", b"[1]"),
        (b"<html>no</html>", b'"<html>no</html>"'),
        (b'{"error": 1e999', b'"{\\"error\\": 1e999"'),
        (b"\xff\x00 no", '"\ufffd\\u0000 no"'.encode()),
        (b" \n", None),
        (b"", None),
        (b"x" * 100_000, None),
    ],
)
def test_an_error_s_body_is_kept_as_json(body: bytes, kept: bytes | None) -> None:
    error_body = refused(400, body).error_body
    assert (None if error_body is None else bytes(error_body)) == kept


@pytest.mark.parametrize(("status", "given"), [(400, 400), (424, 424), (520, 520), (500, 500), (302, 302)])
def test_the_status_that_is_told_is_the_one_that_was_given(status: int, given: int) -> None:
    assert refused(status).given_status == given


def test_an_error_in_a_200_is_told_with_the_status_that_it_names() -> None:
    body = b'{"error": {"message": "too long", "code": 400, "param": "messages"}}'
    verdict = judge(shape=Shape.CHAT, status=200, content_type="application/json", body=body, limits=ANSWER_LIMITS)
    assert isinstance(verdict, Failed)
    failure = failure_of(
        verdict, status=200, location=None, retry_after_seconds=None, retry_statuses=RetryStatuses(BY_DEFAULT)
    )
    assert failure.given_status == 400
    assert failure.error_body is not None
    assert bytes(failure.error_body) == body
