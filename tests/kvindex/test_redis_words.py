"""What is said to Redis and read from it; nothing here needs one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Clear, Offload, RedisSettings, Remove, Store
from app.kvindex.redis_backend import (
    RedisBackend,
    copies_of,
    packed,
    packed_owned,
    redis_url,
    unpacked,
    written,
)
from tests.kvindex.held import source, store

A = source("a")


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


def test_operations_are_told_with_what_a_new_holder_would_be() -> None:
    told = written(Store(1, "cpu", [5], [(6, 7)], [6, 7], [(3, (6, 0))], True, "alice"), A)
    assert told["engine"] == packed([5]) and told["keys"] == packed([6, 7])
    assert (told["owned"], told["remapped"]) == ([packed([6, 7])], [(f"{3:016x}", packed([6, 0]))])
    described = {name: msgspec.json.decode(str(told[name])) for name in ("default", "described")}
    assert described == {"default": ["a", "m", 0, 1, False], "described": ["a", "m", 0, 1, True]}
    assert (told["kind"], told["group"], told["tier"], told["adapter"]) == ("s", 1, "cpu", "alice")
    plain = written(store([5], [6]), A)
    assert msgspec.json.decode(str(plain["default"])) == ["a", "m", 0, 0, True]
    assert "described" not in plain and "adapter" not in plain
    for operation, kind in ((Remove(2, "gpu", [5]), "r"), (Offload(2, "gpu", [5]), "o")):
        assert written(operation, A) == {"kind": kind, "group": 2, "tier": "gpu", "engine": packed([5])}
    assert written(Clear(), A) == {"kind": "c"}
