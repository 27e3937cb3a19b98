"""What headers say of a request, the rank that it is pinned to included."""

from __future__ import annotations

import pytest

from app.serving.api.pipeline import CACHE_THRESHOLD, priority_of, truth
from app.serving.http.errors import ApiError
from tests.application import request


def test_the_priority_is_the_headers_or_else_the_requests_own() -> None:
    assert priority_of(request(), 5) == 5
    for given, priority in (("3", 3), ("-7", -7), (" 0 ", 0)):
        assert priority_of(request(headers={"x-vllm-priority": given}), 5) == priority


def test_a_threshold_is_a_reason_to_finish_if_a_header_says_so() -> None:
    assert truth(request(), CACHE_THRESHOLD) is None
    for meant, words in ((True, ("1", "T", "true")), (False, ("0", "f", "FALSE"))):
        for given in words:
            assert truth(request(headers={CACHE_THRESHOLD: given}), CACHE_THRESHOLD) is meant


def test_another_word_is_refused_and_shown_up_to_its_fortieth_character() -> None:
    context = request(headers={"x-vllm-priority": "p" * 50, CACHE_THRESHOLD: "t" * 50})
    for letter, read in (
        ("p", lambda: priority_of(context, 0)),
        ("t", lambda: truth(context, CACHE_THRESHOLD)),
    ):
        with pytest.raises(ApiError, match=f"got '{letter * 40}'$") as caught:
            read()
        assert caught.value.status == 400
