"""The layers of hybrid models, and the KV cache groups that vLLM puts these layers into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"
MAX_LAYERS = 1024
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


class GroupSpec(Struct, frozen=True):
    """A KV cache group; `window` is the sliding window in tokens, or None."""

    kind: GroupKind
    window: int | None = None


class LayerConfig(Struct):
    """Fields of a model's config.json that name the kinds of its layers.

    `layer_types` lists them. Older files repeat a pattern instead: a full attention layer after
    every `sliding_window_pattern` minus one sliding windows, or after `full_attention_interval`
    minus one layers of linear attention.
    """

    layer_types: list[str] | None = None
    sliding_window: int | None = None
    sliding_window_pattern: int | None = None
    full_attention_interval: int | None = None
    num_hidden_layers: int = 0

    def kinds(self) -> list[str]:
        """Returns the kind of each layer.

        Raises:
            ValueError: the file names none.
        """
        if not 0 <= self.num_hidden_layers <= MAX_LAYERS:
            raise ValueError(f"a model can have at most {MAX_LAYERS} layers")
        if self.layer_types is not None:
            return self.layer_types
        pattern = self.sliding_window_pattern or self.full_attention_interval
        if not pattern or pattern < 1 or not self.num_hidden_layers:
            raise ValueError("the file has no layer_types")
        local = SLIDING if self.sliding_window_pattern else LINEAR
        layers = range(1, self.num_hidden_layers + 1)
        return [local if number % pattern else FULL for number in layers]


class ModelConfig(LayerConfig):
    """A model's config.json; a multimodal model has its layers in `text_config`."""

    text_config: LayerConfig | None = None


def group_layers(config: LayerConfig) -> list[GroupSpec]:
    """Returns the KV cache groups of a model, in vLLM's order.

    Layers of a kind are split into groups of equal size: that of the smallest kind, or of the
    largest one if that has less than half more layers. Memory of incomplete groups stays unused.

    Raises:
        ValueError: vLLM would not make groups of these layers, or they are not simulated.
    """
    counts: dict[GroupKind, int] = {}
    for layer in config.kinds():
        if layer not in KINDS:
            raise ValueError(f"layers of type {layer} are not simulated")
        kind = KINDS[layer]
        counts[kind] = counts.get(kind, 0) + 1
    if "full_attention" not in counts or len(counts) < 2:
        raise ValueError("a hybrid model must have both full attention layers and other layers")
    if "sliding_window" in counts and (config.sliding_window or 0) < 2:
        raise ValueError("sliding_window must be at least 2")
    size = min(counts.values())
    if max(counts.values()) < size * 1.5:
        size = max(counts.values())
    groups = []
    for kind, layers in counts.items():
        window = config.sliding_window if kind == "sliding_window" else None
        groups += [GroupSpec(kind, window)] * -(-layers // size)
    if len(groups) > MAX_GROUPS:
        raise ValueError(f"these layers require {len(groups)} groups; the maximum is {MAX_GROUPS}")
    return groups


def distinct(groups: Sequence[GroupSpec]) -> list[GroupSpec]:
    """Returns the specs without repetitions, full attention first."""
    return sorted(dict.fromkeys(groups), key=_is_local)


def _is_local(group: GroupSpec) -> bool:
    return group.kind != "full_attention"
