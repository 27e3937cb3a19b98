"""Requests for tokens by tokens, and structural tags, as rules of their own see them."""

from __future__ import annotations

import json

import pytest

from app.serving.http.errors import ApiError
from app.serving.protocol.decoding import decode
from app.serving.protocol.generate import GenerateRequest
from app.serving.protocol.rules import check_structural_tag

CONTEXT = 10


def asked(**sampling: object) -> GenerateRequest:
    """Three prompt tokens."""
    body = {"token_ids": [1, 2, 3], "sampling_params": sampling}
    return decode(json.dumps(body).encode(), "application/json", GenerateRequest)


@pytest.mark.parametrize(
    ("given", "most"), [({}, CONTEXT - 3), ({"max_tokens": 1}, 1), ({"max_tokens": 5}, 5)]
)
def test_without_a_limit_a_reply_may_fill_the_context(given: dict[str, object], most: int) -> None:
    assert asked(**given).as_completion(CONTEXT).max_tokens == most


def test_a_limit_beyond_the_context_is_cut() -> None:
    assert asked(max_tokens=9999).as_completion(CONTEXT).max_tokens == CONTEXT - 3


@pytest.mark.parametrize("tag", [None, "{}", '{"type": "structural_tag"}', '{"a": NaN}'])
def test_a_structural_tag_is_a_text_that_holds_an_object(tag: str | None) -> None:
    check_structural_tag({"structural_tag": tag})


@pytest.mark.parametrize("tag", ["", "[]", "1", "{", "null", {}, 7])
def test_any_other_structural_tag_is_refused(tag: object) -> None:
    with pytest.raises(ApiError, match="must be a JSON object"):
        check_structural_tag({"structural_tag": tag})
