"""The header X-data-parallel-rank, as vLLM understands it."""

from __future__ import annotations

import pytest

from app.api.builder import RANK as HEADER
from app.api.builder import check_rank
from app.http.errors import ApiError
from tests.application import request


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
