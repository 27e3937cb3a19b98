"""What headers say of a request, the rank that it is pinned to included."""

from __future__ import annotations

import pytest

from app.serving.api.builder import CACHE_THRESHOLD, check_rank, priority_of, truth
from app.serving.api.builder import RANK as HEADER
from app.serving.http.errors import ApiError
from tests.application import request


@pytest.mark.parametrize(("given", "priority"), [(None, 5), ("3", 3), ("-7", -7), (" 0 ", 0)])
def test_the_priority_is_the_headers_or_else_the_requests_own(given: str | None, priority: int) -> None:
    headers = {} if given is None else {"x-vllm-priority": given}
    assert priority_of(request(headers=headers), 5) == priority


@pytest.mark.parametrize(
    ("given", "meant"),
    [(None, None), ("1", True), ("T", True), ("true", True), ("0", False), ("f", False), ("FALSE", False)],
)
def test_a_threshold_is_a_reason_to_finish_if_a_header_says_so(given: str | None, meant: bool | None) -> None:
    headers = {} if given is None else {CACHE_THRESHOLD: given}
    assert truth(request(headers=headers), CACHE_THRESHOLD) is meant


def test_another_word_is_refused_and_shown_up_to_its_fortieth_character() -> None:
    context = request(headers={"x-vllm-priority": "p" * 50, CACHE_THRESHOLD: "t" * 50})
    with pytest.raises(ApiError) as caught:
        priority_of(context, 0)
    assert caught.value.status == 400 and caught.value.message.endswith(f"got {'p' * 40!r}")
    with pytest.raises(ApiError) as caught:
        truth(context, CACHE_THRESHOLD)
    assert caught.value.status == 400 and caught.value.message.endswith(f"got {'t' * 40!r}")


@pytest.mark.parametrize("text", ["2", " 2 ", "+2", "two", "", "2.0", "9" * 5000])
def test_the_own_rank_and_what_is_no_number_are_fine(text: str) -> None:
    check_rank(request(headers={HEADER: text}), 2)


def test_no_header_pins_nothing() -> None:
    check_rank(request(), 2)


@pytest.mark.parametrize("text", ["0", "3", "-1", "1000000"])
def test_another_rank_is_not_here(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_rank(request(headers={HEADER: text}), 2)
    assert (refused.value.status, refused.value.type, refused.value.param) == (400, "BadRequestError", None)
    assert text in refused.value.message and "rank 2" in refused.value.message
