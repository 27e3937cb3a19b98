"""Prefixes of prompts where the groups have different blocks."""

import pytest

from app.core.engine.kvcache.block_pool import BlockPool
from app.extensions.cache_groups.layers import group_layers
from app.extensions.cache_groups.lookup import GroupLookup, group_key
from app.extensions.cache_groups.policies import policy_of
from app.extensions.cache_groups.presets import PRESETS

SIZE = 16
TOKENS = 4096
HASHES = [bytes([number]) * 32 for number in range(4)]


@pytest.mark.parametrize(
    ("attention", "state", "expected"),
    [
        pytest.param(3, 1, 3, id="full attention has more"),
        pytest.param(3, 0, 3, id="no state"),
        pytest.param(2, 2, None, id="as many"),
        pytest.param(1, 3, None, id="the state is deeper"),
    ],
)
def test_only_a_longest_prefix_of_full_attention_diverges(
    attention: int, state: int, expected: int | None
) -> None:
    """`attention` blocks are cached, and the state after `state` blocks."""
    specs = group_layers(PRESETS["qwen3-next"])
    pool = BlockPool(64, on_evict=lambda hashes: None)
    for number, spec in enumerate(specs):
        positions = range(attention)
        if spec.kind == "mamba":
            positions = range(state - 1, state) if state else range(0)
        for position in positions:
            [block] = pool.take(1)
            pool.cache(block, group_key(HASHES[position], number))
    policies = [policy_of(spec, SIZE, TOKENS, TOKENS) for spec in specs]

    hit = GroupLookup(pool, specs, policies).diverging(HASHES)

    assert (None if hit is None else hit.blocks) == expected
