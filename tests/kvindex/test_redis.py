"""What only a shared backend has to do: be shared, be away, come back, and come back empty."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import RedisSettings
from app.kvindex.redis_backend import (
    RedisBackend,
    copies_of,
    packed,
    packed_owned,
    redis_url,
    unpacked,
)

pytestmark = pytest.mark.redis


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("redis://h:1", "redis://h:1"),
        ("rediss://h:1/2", "rediss://h:1/2"),
        ("valkey://h:1", "redis://h:1"),
        ("valkeys://h:1", "rediss://h:1"),
        ("unix:///s", "unix:///s"),
        ("h:1", "redis://h:1"),
    ],
)
def test_addresses_are_those_that_llm_d_takes(given: str, known: str) -> None:
    assert redis_url(given) == known


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        RedisBackend(RedisSettings(url="http://h:1"))


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_keys_are_packed_in_sixteen_digits_each(keys: list[int]) -> None:
    assert unpacked(packed(keys).encode()) == tuple(keys) == unpacked(packed_owned(tuple(keys)).encode())
    assert len(packed(keys)) == 16 * len(keys)
    assert [packed_owned(key) for key in keys] == [packed([key]) for key in keys]


bitmaps = st.none() | st.integers(0, 3).map(lambda mask: mask.to_bytes(2, "little"))


@given(st.integers(1, 3).flatmap(lambda tiers: st.lists(st.lists(bitmaps, min_size=tiers, max_size=tiers))))
def test_bitmaps_are_read_up_to_the_first_block_that_nobody_has(blocks: list[list[bytes | None]]) -> None:
    expected = []
    for each in blocks:
        masks = [int.from_bytes(bitmap or b"", "little") for bitmap in each]
        if not any(masks):
            break
        expected.append(tuple(masks[: max(tier for tier, mask in enumerate(masks) if mask) + 1]))
    found = copies_of(list(zip(*blocks, strict=True)))
    assert found == expected
    pairs = zip(blocks, blocks[1:], found, found[1:], strict=False)
    assert all(one is other for before, after, one, other in pairs if before == after)
