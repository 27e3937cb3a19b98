"""Features of blocks, against plain lists of what every token stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.prompt import Adapter, ExtraKeys, Placeholder
from app.kvindex.keys import (
    Features,
    fold_features,
    granularities,
    published_features,
    requested_features,
)


@pytest.mark.parametrize(
    ("keys", "adapter", "features"),
    [
        (["alice"], None, ("alice",)),
        (["alice"], "alice", None),
        (["alice", "alice"], "alice", ("alice",)),  # a salt of the same name
        (["bob"], "alice", ("bob",)),
        (["img", "alice"], "alice", ("img", "alice")),
        ([["img", 4], "salt"], None, ("img", "salt")),
        ([["img", 4], ["img", 90]], None, ("img",)),
        ([b"\x01\xff"], None, ("01ff",)),
        ([[b"\x01\xff", 3]], None, ("01ff",)),
        ([[], None, 5, [5], 1.5, "salt"], None, ("salt",)),
        ([[]], None, None),
        ([], "alice", None),
        (None, "alice", None),
    ],
)
def test_what_is_published_of_a_block_are_identifiers_and_a_salt(
    keys: list[object] | None, adapter: str | None, features: Features
) -> None:
    assert published_features([["before"], keys, None], adapter) == [("before",), features, None]


@pytest.mark.parametrize("extra_keys", [None, [], [None, None], [[], []], [["alice"], None], [[5], [[]]]])
def test_blocks_without_any_are_told_at_once(extra_keys: list[list[object] | None] | None) -> None:
    assert published_features(extra_keys, "alice") is None


identifiers = st.sampled_from(["a", "b", "c"])
images = st.lists(st.tuples(identifiers, st.integers(0, 40), st.integers(1, 20)), max_size=4)
sizes = st.integers(1, 9)


def image(identifier: str, offset: int, length: int) -> Placeholder:
    return Placeholder(identifier, offset, length)


def plain_features(
    blocks: int, size: int, media: list[Placeholder], salt: str | None, engine_size: int
) -> list[Features]:
    """Token by token: an engine's block has the images of its tokens, and belongs to where it begins."""
    texts: list[list[str]] = [[] for _ in range(blocks)]
    for start in range(0, blocks * size, engine_size):
        for item in sorted(media, key=lambda item: item.offset):
            if set(range(start, start + engine_size)) & set(range(item.offset, item.offset + item.length)):
                texts[start // size].append(item.identifier)
        if salt and not start:
            texts[0].append(salt)
    return [tuple(dict.fromkeys(block)) or None for block in texts]


@given(st.integers(0, 12), sizes, images, st.none() | st.sampled_from(["", "salt"]), sizes)
def test_a_block_is_asked_for_with_what_engines_publish_of_it(
    blocks: int, size: int, shown: list[tuple[str, int, int]], salt: str | None, engine_size: int
) -> None:
    media = [image(*each) for each in shown]
    expected = plain_features(blocks, size, media, salt, engine_size)
    found = requested_features(blocks, size, media, salt, engine_size)
    assert found == (expected if any(expected) else None)


@given(st.integers(1, 12), sizes, images, st.none() | st.just("salt"), st.booleans())
def test_requests_and_engines_with_blocks_of_one_size_say_the_same(
    blocks: int, size: int, shown: list[tuple[str, int, int]], salt: str | None, adapted: bool
) -> None:
    media, adapter = [image(*each) for each in shown], Adapter("alice") if adapted else None
    published = ExtraKeys(size, adapter, salt, media).published(0, blocks)
    assert requested_features(blocks, size, media, salt, size) == published_features(
        published, "alice" if adapted else None
    )


def test_a_request_needs_no_room_for_images_behind_its_blocks() -> None:
    media = [image("near", 3, 1), image("far", 1 << 60, 1), image("large", 7, 1 << 60)]
    assert requested_features(2, 4, media, None, 4) == [("near",), ("large",)]
    assert requested_features(1, 4, media[1:], None, 4) is None


@given(
    st.lists(st.tuples(st.integers(-9, 60), st.none() | st.lists(identifiers, max_size=3).map(tuple))),
    st.integers(0, 6),
    sizes,
)
def test_features_belong_to_the_block_in_which_they_begin(
    placed: list[tuple[int, Features]], blocks: int, size: int
) -> None:
    expected = []
    for block in range(blocks):
        inside = [text for start, texts in placed if start // size == block for text in texts or ()]
        expected.append(tuple(dict.fromkeys(inside)) or None)
    assert fold_features(placed, blocks, size) == expected


@pytest.mark.parametrize(
    ("engine_sizes", "size", "keyed"),
    [
        ([], 16, {16}),
        ([16], 16, {16}),
        ([1, 2, 4, 8], 16, {16}),
        ([32], 16, {32}),
        ([3, 8, 32, 48], 16, {3, 16, 32, 48}),
    ],
)
def test_a_request_is_keyed_once_for_all_engines_whose_blocks_fit_into_its_own(
    engine_sizes: list[int], size: int, keyed: set[int]
) -> None:
    assert granularities(engine_sizes, size) == keyed
