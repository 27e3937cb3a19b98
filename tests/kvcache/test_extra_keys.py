"""What blocks' hashes cover besides tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.prompt import ExtraKeys, Placeholder
from tests.kvcache.caches import ALICE


def test_an_adapter_is_in_every_block_by_name_and_path_and_published_by_name() -> None:
    keys = ExtraKeys(16, ALICE)
    assert keys.hashed(0, 2) == [(("lora", "Alice", "/p/alice"),)] * 2
    assert keys.published(5, 7) == [["Alice"], ["Alice"]]


def test_a_salt_is_in_the_first_block_only() -> None:
    keys = ExtraKeys(16, salt="s1")
    assert keys.hashed(0, 2) == [(("cache_salt", "s1"),), None]
    assert keys.hashed(1, 2) == [None]
    assert keys.published(0, 2) == [["s1"], None]


def test_an_image_is_in_the_blocks_that_it_touches_with_its_offset_in_them() -> None:
    keys = ExtraKeys(16, placeholders=[Placeholder("img-1", 4, 20)])
    assert keys.hashed(0, 3) == [(("mm", "img-1", 4),), (("mm", "img-1", -12),), None]
    assert keys.published(0, 3) == [[["img-1", 4]], [["img-1", -12]], None]


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
