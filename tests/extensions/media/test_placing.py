"""Tokens of media in prompts, in place of placeholders."""

import pytest

from app.core.server.http.errors import ApiError
from app.extensions.media.placing import SLICE_TOKENS, PlacedItem, Truncation, place
from app.extensions.media.rules import ItemTokens

PATTERNS = {"<pad>": [7], "<image>": [3, 4], "<audio>": [5], "<image_1>": [8], "<image_2>": [9]}


def image(name: str, length: int | None, embeddings: int | None = None) -> PlacedItem:
    if length is None:
        return PlacedItem("image", name, None)
    return PlacedItem("image", name, ItemTokens(length, embeddings or length))


def placed(
    ids: list[int],
    *items: PlacedItem,
    target: str | None = "<pad>",
    truncation: Truncation | None = None,
    max_model_len: int = 100,
) -> tuple[list[int], list[tuple[int, int]]]:
    prompt, features = place(
        ids,
        items=items,
        encode=PATTERNS.__getitem__,
        targets={"image": target} if target else {},
        max_model_len=max_model_len,
        truncation=truncation,
    )
    places = [
        (each["offset"], each["length"])
        for modality in features["mm_placeholders"].values()
        for each in modality
    ]
    return list(prompt), places


def test_each_placeholder_becomes_the_tokens_of_its_item() -> None:
    prompt, places = placed([1, 7, 2, 7, 1], image("a", 3), image("b", 2))
    assert prompt == [1, 7, 7, 7, 2, 7, 7, 1]
    assert places == [(1, 3), (5, 2)]


def test_placeholder_of_several_tokens_is_replaced_as_a_whole() -> None:
    prompt, places = placed([1, 3, 4, 2], image("a", 3), target=None)
    assert prompt == [1, 3, 3, 3, 2]
    assert places == [(1, 3)]


def test_item_without_a_rule_keeps_its_placeholder() -> None:
    assert placed([1, 3, 4, 2], image("a", None), target=None) == ([1, 3, 4, 2], [(1, 2)])


def test_items_without_a_placeholder_come_first() -> None:
    prompt, places = placed([1, 2], image("a", 2), target=None)
    assert prompt == [3, 3, 1, 2]
    assert places == [(0, 2)]
    assert placed([], image("a", None), target=None) == ([3], [(0, 1)])


def test_numbered_placeholders_are_those_of_their_items() -> None:
    prompt, places = placed([9, 1, 8], image("a", 2), image("b", 3), target="<image_{number}>")
    assert prompt == [9, 9, 9, 1, 8, 8]
    assert places == [(4, 2), (0, 3)]


@pytest.mark.parametrize("before", [SLICE_TOKENS - 2, SLICE_TOKENS - 1, SLICE_TOKENS])
def test_placeholder_far_into_a_prompt_is_found(before: int) -> None:
    ids = [*[3] * before, 3, 4, 1]
    prompt, places = placed(ids, image("a", 1), target=None, max_model_len=2 * before)
    assert prompt == [*[3] * before, 3, 1]
    assert places == [(before, 1)]


def test_beginning_of_a_placeholder_is_none() -> None:
    prompt, places = placed([3, 1, 3, 4, 3], image("a", 2), target=None)
    assert prompt == [3, 1, 3, 3, 3]
    assert places == [(2, 2)]


def test_first_of_equal_numbered_placeholders_is_that_of_the_item() -> None:
    ids = [8, 9, 8, 9]
    prompt, places = placed(ids, image("a", 2), image("b", 2), target="<image_{number}>")
    assert prompt == [8, 8, 9, 9, 8, 9]
    assert places == [(0, 2), (2, 2)]


def test_prompt_that_has_all_tokens_of_its_items_stays_as_it_is() -> None:
    ids = [1, 7, 7, 0, 7, 7, 2, 7, 7]
    prompt, places = placed(ids, image("a", 6, embeddings=4), image("b", 2))
    assert prompt == ids
    assert places == [(1, 5), (7, 2)]


def test_prompt_that_is_too_long_with_its_media_is_rejected() -> None:
    assert len(placed([7, *[1] * 50], image("a", 50))[0]) == 100
    with pytest.raises(ApiError, match=r"Input length \(101\) exceeds"):
        placed([7, *[1] * 50], image("a", 51))


@pytest.mark.parametrize(
    ("truncation", "is_cut"),
    [
        (Truncation(12, keeps_begin=False), True),
        (Truncation(13, keeps_begin=False), False),
        (Truncation(10, keeps_begin=True), True),
        (Truncation(11, keeps_begin=True), False),
        (Truncation(-1, keeps_begin=False), False),
    ],
)
def test_limit_of_the_client_must_not_cut_an_item(truncation: Truncation, is_cut: bool) -> None:
    ids = [1, 7, 1, 1, 1]
    if is_cut:
        with pytest.raises(ApiError, match="would split or drop a"):
            placed(ids, image("a", 10), truncation=truncation)
    else:
        assert placed(ids, image("a", 10), truncation=truncation)[1] == [(1, 10)]


def test_tiny_item_is_not_taken_for_its_longer_placeholder() -> None:
    prompt, places = placed([1, 3, 4, 2], image("a", 1), target=None)
    assert prompt == [1, 3, 2]
    assert places == [(1, 1)]
