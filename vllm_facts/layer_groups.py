"""The content of vLLM's KV cache for each layer of a model, and the size of groups of layers."""

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from vllm_facts.model_shape import CHUNKED, CONVOLUTION, FULL, LINEAR, SLIDING

Kept: TypeAlias = Literal["full", "window", "state"]
"""The keys and values of all tokens, those of a window, or one state of a sequence."""

KEPT: Mapping[str, Kept] = {
    FULL: "full",
    "attention": "full",
    "deepseek_sparse_attention": "full",
    SLIDING: "window",
    CHUNKED: "window",
    LINEAR: "state",
    "mamba": "state",
    CONVOLUTION: "state",
}
"""Kind of a layer in a `config.json` -> what it keeps; other layers keep nothing."""
MIXED_RATIO = 1.5
"""Ratio of layers of two kinds below which the groups have the larger number."""


def group_size(counts: Collection[int]) -> int:
    """Returns the layers of a group, from the number of layers of each kind.

    It is that of the rarest kind, or of the most frequent one if that has less than half more
    layers. Memory of incomplete groups stays unused.
    """
    if max(counts) < MIXED_RATIO * min(counts):
        return max(counts)
    return min(counts)
