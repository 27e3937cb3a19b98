"""What blocks' hashes cover besides tokens."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.hashing import BlockHasher, Extra
from app.kvcache.prompt import ExtraKeys, Placeholder, Prompt
from tests.kvcache.caches import ALICE


def test_a_plain_prompt_has_none() -> None:
    keys = ExtraKeys(16)
    assert keys.hashed(0, 3) is None
    assert keys.published(0, 3) == [None, None, None]


def test_an_adapter_is_in_every_block_by_name_and_path_and_published_by_name() -> None:
    keys = ExtraKeys(16, ALICE)
    assert keys.hashed(0, 2) == [(("lora", "Alice", "/p/alice"),)] * 2
    assert keys.published(5, 7) == [["Alice"], ["Alice"]]


def test_a_salt_is_in_the_first_block_only() -> None:
    keys = ExtraKeys(16, salt="s1")
    assert keys.hashed(0, 2) == [(("cache_salt", "s1"),), None]
    assert keys.hashed(1, 2) == [None]
    assert keys.published(0, 2) == [["s1"], None]


def test_an_empty_salt_is_none() -> None:
    assert ExtraKeys(16, salt="").hashed(0, 1) is None


def test_an_image_is_in_the_blocks_that_it_touches_with_its_offset_in_them() -> None:
    keys = ExtraKeys(16, placeholders=[Placeholder("img-1", 4, 20)])
    assert keys.hashed(0, 3) == [(("mm", "img-1", 4),), (("mm", "img-1", -12),), None]
    assert keys.published(0, 3) == [[["img-1", 4]], [["img-1", -12]], None]


def test_an_image_that_ends_with_a_block_is_not_in_the_next_one() -> None:
    keys = ExtraKeys(16, placeholders=[Placeholder("a", 0, 16), Placeholder("b", 48, 32)])
    assert [key and key[0][1] for key in keys.hashed(0, 5) or []] == ["a", None, None, "b", "b"]


def test_adapter_then_images_in_their_order_then_salt() -> None:
    images = [Placeholder("second", 8, 2), Placeholder("first", 1, 2)]
    keys = ExtraKeys(16, ALICE, "s1", images)
    assert keys.published(0, 2) == [["Alice", ["first", 1], ["second", 8], "s1"], ["Alice"]]
    assert [key[0] for key in (keys.hashed(0, 1) or [()])[0] or ()] == ["lora", "mm", "mm", "cache_salt"]


def test_before_vllm_0_31_hashes_cover_bare_keys() -> None:
    keys = ExtraKeys(16, ALICE, "s1", [Placeholder("img-1", 4, 20)], tagged=False)
    assert keys.hashed(0, 3) == [("Alice", ("img-1", 4), "s1"), ("Alice", ("img-1", -12)), ("Alice",)]


spans = st.tuples(st.integers(0, 100), st.integers(0, 60))


@given(st.lists(spans, max_size=6), st.integers(1, 20))
def test_an_image_is_in_exactly_the_blocks_that_hold_one_of_its_tokens(
    found: list[tuple[int, int]], block_size: int
) -> None:
    images = [Placeholder(str(n), offset, length) for n, (offset, length) in enumerate(found) if length]
    published = ExtraKeys(block_size, placeholders=images).published(0, 200)
    for image in images:
        tokens = range(image.offset, image.offset + image.length)
        blocks = {token // block_size for token in tokens}
        inside = {
            block
            for block, keys in enumerate(published)
            for name, offset in keys or []
            if name == image.identifier and offset == image.offset - block * block_size
        }
        assert inside == blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(15, 0), (16, 1), (40, 2)])
def test_a_prompt_makes_the_keys_of_its_full_blocks_and_of_no_others(tokens: int, blocks: int) -> None:
    class CountedKeys(ExtraKeys):
        made = 0

        def hashed(self, first: int, last: int) -> list[Extra] | None:
            self.made += last - first
            return super().hashed(first, last)

    keys = CountedKeys(16, ALICE)
    prompt = Prompt(range(tokens), BlockHasher("sha256_cbor", 16, "0", Random(0)), keys)
    assert (len(prompt.hashes), keys.made) == (blocks, blocks)
