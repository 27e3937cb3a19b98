"""The layers of hybrid models, and the KV cache groups that vLLM puts these layers into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from vllm_facts.layer_groups import KEPT, Kept, group_size
from vllm_facts.model_shape import CHUNKED, ModelShape

MAX_GROUPS = 64

GroupKind: TypeAlias = Literal["full_attention", "sliding_window", "mamba"]
"""Kinds of groups, as vLLM's events name them."""

GROUP_KINDS: Mapping[Kept, GroupKind] = {
    "full": "full_attention",
    "window": "sliding_window",
    "state": "mamba",
}
"""Content of a layer's cache -> kind of its group."""
UNCACHED = ("moe", "mlp")
"""Layers of Nemotron-H that have no cache."""


class GroupSpec(Struct, frozen=True):
    """A KV cache group; `window` is the sliding window in tokens, or None."""

    kind: GroupKind
    window: int | None = None


def group_layers(shape: ModelShape) -> list[GroupSpec]:
    """Returns the KV cache groups of a model, in vLLM's order.

    Layers of a kind are split into groups of equal size.

    Raises:
        ValueError: vLLM would not make groups of these layers, or they are not simulated.
    """
    counts: dict[GroupKind, int] = {}
    for layer in shape.layer_kinds:
        if layer in UNCACHED:
            continue
        # The windows of chunked attention begin anew at each chunk.
        if layer not in KEPT or layer == CHUNKED:
            raise ValueError(f"layers of type {layer} are not simulated")
        kind = GROUP_KINDS[KEPT[layer]]
        counts[kind] = counts.get(kind, 0) + 1
    if "full_attention" not in counts or len(counts) < 2:
        raise ValueError("a hybrid model must have both full attention layers and other layers")
    if "sliding_window" in counts and shape.sliding_window < 2:
        raise ValueError("sliding_window must be at least 2")
    size = group_size(counts.values())
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
