"""Which chunks leave a full tier up to vLLM 0.30, where lookups, stores and transfers are uses."""

from collections.abc import Sequence

import pytest

from app.extensions.kv_offload.cpu_tier import CpuTier
from app.extensions.kv_offload.policies import Key

FIRST = [b"a", b"b"]
SECOND = [b"c", b"d"]
NEW = [b"e"]


def store(tier: CpuTier, keys: Sequence[Key]) -> None:
    """Stores the chunks of one request, which ends."""
    access = tier.new_access()
    stored = tier.prepare_store(keys, 0, access)
    assert stored is not None
    tier.touch(keys)
    tier.complete_store(stored)
    tier.finish(access)


def evicted_by_new_chunk(tier: CpuTier) -> list[Key]:
    tier.take_events()
    store(tier, NEW)
    return [key for event in tier.take_events() if event.is_removal for key in event.keys]


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_lookup_is_a_use_before_031(policy: str) -> None:
    victims = {}
    for uses in ("transfers", "requests"):
        tier = CpuTier(4, policy, chunk_uses=uses)
        store(tier, FIRST)
        store(tier, SECOND)
        tier.touch(FIRST)  # a lookup, whose request does not start
        victims[uses] = evicted_by_new_chunk(tier)
    assert victims["transfers"][0] in SECOND
    assert victims["requests"] == [b"b"]


def test_end_of_a_load_is_a_use_in_the_order_of_the_prompt_before_031() -> None:
    victims = {}
    for uses in ("transfers", "requests"):
        tier = CpuTier(4, chunk_uses=uses)
        store(tier, SECOND)
        store(tier, FIRST)
        tier.hold(SECOND)
        tier.release(SECOND)
        victims[uses] = evicted_by_new_chunk(tier)
    assert victims["transfers"] == [b"a"]
    assert victims["requests"] == [b"d"]


def test_written_chunk_becomes_frequent_at_the_next_lookup_before_031() -> None:
    tier = CpuTier(4, "arc", chunk_uses="transfers")
    store(tier, FIRST)
    store(tier, SECOND)
    tier.touch([b"a"])
    assert evicted_by_new_chunk(tier) == [b"b"]
    store(tier, [b"b"])  # was evicted from the recent chunks, which may be one more now
    assert tier.get(b"a") is not None


def test_lookups_count_for_the_store_threshold_before_029() -> None:
    stored = {}
    for uses in ("lookups", "offers"):
        tier = CpuTier(4, store_threshold=2, chunk_uses=uses)
        for _ in range(2):
            tier.looked_up(FIRST)  # of a prompt that waits
        stored[uses] = tier.prepare_store(FIRST, 0, tier.new_access())
    assert stored == {"lookups": (b"a", b"b"), "offers": ()}


def test_arc_evicts_no_recent_chunk_in_place_of_a_frequent_one_before_030() -> None:
    stored = {}
    for uses in ("transfers", "offers"):
        tier = CpuTier(2, "arc", chunk_uses=uses)
        for key in (b"a", b"b", b"c"):
            store(tier, [key])
        tier.touch([b"a"])  # was evicted: one more recent chunk is to stay
        tier.touch([b"a"])
        tier.touch([b"b"])  # is frequent now
        tier.hold([b"b"])
        stored[uses] = tier.prepare_store([b"d"], 0, tier.new_access())
    assert stored == {"transfers": (b"d",), "offers": None}
