"""The layers of hybrid models, and the KV cache groups that vLLM puts these layers into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from vllm_facts.model_shape import FULL, LINEAR, SLIDING, ModelShape

MAX_GROUPS = 64

GroupKind: TypeAlias = Literal["full_attention", "sliding_window", "mamba"]
"""Kinds of groups, as vLLM's events name them."""

KINDS: dict[str, GroupKind] = {
    FULL: "full_attention",
    SLIDING: "sliding_window",
    LINEAR: "mamba",
    "mamba": "mamba",
}
"""Kind of a layer in a model's config.json -> kind of the group."""
UNCACHED = ("moe", "mlp")
"""Layers of Nemotron-H that have no cache."""


class GroupSpec(Struct, frozen=True):
    """A KV cache group; `window` is the sliding window in tokens, or None."""

    kind: GroupKind
    window: int | None = None


def group_layers(shape: ModelShape) -> list[GroupSpec]:
    """Returns the KV cache groups of a model, in vLLM's order.

    Layers of a kind are split into groups of equal size: that of the smallest kind, or of the
    largest one if that has less than half more layers. Memory of incomplete groups stays unused.

    Raises:
        ValueError: vLLM would not make groups of these layers, or they are not simulated.
    """
    counts: dict[GroupKind, int] = {}
    for layer in shape.layer_kinds:
        if layer in UNCACHED:
            continue
        if layer not in KINDS:
            raise ValueError(f"layers of type {layer} are not simulated")
        kind = KINDS[layer]
        counts[kind] = counts.get(kind, 0) + 1
    if "full_attention" not in counts or len(counts) < 2:
        raise ValueError("a hybrid model must have both full attention layers and other layers")
    if "sliding_window" in counts and shape.sliding_window < 2:
        raise ValueError("sliding_window must be at least 2")
    size = min(counts.values())
    if max(counts.values()) < size * 1.5:
        size = max(counts.values())
    groups = []
    for kind, layers in counts.items():
        window = shape.sliding_window if kind == "sliding_window" else None
        groups += [GroupSpec(kind, window)] * -(-layers // size)
    if len(groups) > MAX_GROUPS:
        raise ValueError(f"these layers require {len(groups)} groups; the maximum is {MAX_GROUPS}")
    return groups


def distinct(groups: Sequence[GroupSpec]) -> list[GroupSpec]:
    """Returns the specs without repetitions, full attention first."""
    return sorted(dict.fromkeys(groups), key=_is_local)


def _is_local(group: GroupSpec) -> bool:
    return group.kind != "full_attention"
