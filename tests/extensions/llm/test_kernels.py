"""The compiled loops compute what torch does, and each token as if it were alone."""

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.llm.attention import Decodes, GatheredDecodes, PagedStore
from app.extensions.llm.config import ModelConfig
from app.extensions.llm.linear import RmsNorm
from app.extensions.llm.step import Chunk

pytestmark = pytest.mark.engine
SEQUENCE: Any = None
"""Attention does not look at it."""


def store_of(kv_heads: int, group: int, block_size: int) -> PagedStore:
    """A layer of random keys and values in 40 blocks; heads have 24 numbers."""
    sizes = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_layers": 1,
        "head_dim": 24,
    }
    config = ModelConfig(
        architecture="llama", num_heads=kv_heads * group, num_kv_heads=kv_heads, **sizes
    )
    store = PagedStore(
        config, 40, block_size=block_size, dtype=torch.float32, device=torch.device("cpu")
    )
    store.layers[0].normal_(generator=torch.Generator().manual_seed(1))
    return store


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([1, 4, 16]),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=6),
)
def test_paged_attention_equals_dense_attention(
    kv_heads: int, group: int, block_size: int, places: list[tuple[int, int]]
) -> None:
    store = store_of(kv_heads, group, block_size)
    random = Random(2)
    decodes = []
    for start, count in places:  # with drafts
        blocks = random.sample(range(40), -(-(start + count) // block_size))
        decodes.append(Chunk(SEQUENCE, [0] * count, start, blocks))
    tokens = sum(count for _, count in places)
    queries = torch.randn(tokens, kv_heads * group, 24, generator=torch.Generator().manual_seed(3))
    stored = store.layers[0]
    seen = Decodes(store, decodes)(queries, stored)
    assert torch.allclose(seen, GatheredDecodes(store, decodes)(queries, stored), atol=1e-5)
    first = 0
    for decode in decodes:
        last = first + len(decode.tokens)
        assert torch.equal(Decodes(store, [decode])(queries[first:last], stored), seen[first:last])
        first = last


def test_nan_keys_do_not_affect_other_sequences() -> None:
    store = store_of(2, 3, 4)
    stored = store.layers[0]
    queries = torch.ones(2, 6, 24)
    decodes = [Chunk(SEQUENCE, [0], 6, [3, 9]), Chunk(SEQUENCE, [0], 5, [4, 8])]
    alone = Decodes(store, decodes)(queries, stored)
    stored[3 * 4 + 1, 0, :, 5] = float("nan")
    seen = Decodes(store, decodes)(queries, stored)
    assert bool(seen[0].isnan().all()) and torch.equal(seen[1], alone[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_equals_that_of_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 4, 48, generator=generator)
    weight = torch.randn(48, generator=generator)
    x[0] = 0
    x[1] = x[1] * 1e4
    x = x.to(dtype)
    weight = weight.to(dtype)
    part = x[:, 1:3]  # not one piece of memory
    normed = RmsNorm(weight, 1e-6)(part)
    wanted = torch.nn.functional.rms_norm(part.float(), (48,), weight.float(), 1e-6)
    assert normed.dtype == dtype and normed.shape == part.shape
    assert torch.allclose(normed.float(), wanted, rtol=1e-5 if dtype == torch.float32 else 1e-2)
