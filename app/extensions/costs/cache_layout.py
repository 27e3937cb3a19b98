"""Blocks of the KV cache, as vLLM divides memory among the layers of a model.

vLLM puts layers of a kind into groups with an equal number of layers. All groups take blocks of one
size from one pool. A layer with a state takes one block for each sequence, and a layer with a
window takes the blocks of its window.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from app.extensions.costs.shapes import CostShape
from app.extensions.costs.version_rules import CacheRules
from config.declaration import ConfigError
from vllm_facts.layer_groups import KEPT, Kept, group_size

STATE_ALIGNMENT = 16
"""Tokens of a block are a multiple of this number, so that a block holds a state."""
LATENT_STATE_ALIGNMENT = 128
"""The same beside latent attention."""


class Group(Struct, frozen=True, kw_only=True):
    """Groups of one kind: their number, and the tokens of a block."""

    kind: Kept
    count: int
    block_size: int
    window: int = 0

    def blocks_of(self, length: int, step_tokens: int, state_blocks: int) -> int:
        """Returns the blocks of a sequence in all groups of this kind."""
        if self.kind == "state":
            return self.count * state_blocks
        tokens = length
        if self.kind == "window":
            tokens = min(length, self.window - 1 + step_tokens)
        blocks = -(-tokens // self.block_size)
        if self.kind == "window":
            blocks += 1  # a window can begin inside a block
        return self.count * blocks


class CacheLayout(Struct, frozen=True, kw_only=True):
    """Size of a block on a device, and the groups that take blocks."""

    block_bytes: float
    groups: tuple[Group, ...]
    step_tokens: int
    """Most tokens of a step, which layers with a window keep, too."""
    state_blocks: int = 1
    """Blocks of a sequence in a group of layers with a state."""
    sharers: int = 1
    """Devices that share the tokens of a sequence."""

    def blocks_of(self, length: int) -> int:
        """Returns the blocks of a sequence."""
        length = -(-length // self.sharers)
        return sum(
            group.blocks_of(length, self.step_tokens, self.state_blocks) for group in self.groups
        )

    def concurrency(self, blocks: int, length: int) -> float:
        """Returns how many sequences of a length have a place in a number of blocks."""
        return blocks / max(1, self.blocks_of(length))

    def tokens(self, blocks: int, length: int, rules: CacheRules) -> int:
        """Returns the tokens that a version of vLLM logs as the size of the cache."""
        if not rules.logs_by_group:
            return int(self.concurrency(blocks, length) * length)
        count = sum(group.count for group in self.groups)
        size = min(group.block_size for group in self.groups)
        return blocks // count * size * self.sharers

    def longest(self, blocks: int, limit: int) -> int:
        """Returns the longest sequence that has a place, of at most `limit` tokens; 0 for none."""
        low = 0
        high = limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_of(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


class Layers(Struct, frozen=True, kw_only=True):
    """Layers of a kind, and the bytes of a token or a state in a layer, on a device."""

    kind: Kept
    count: int
    bytes: float


class CacheUse(Struct, frozen=True, kw_only=True):
    """Parallel sizes, formats, and limits that decide about the cache beside the model."""

    devices: int
    """Tensor parallel devices of a stage."""
    stages: int
    number_bytes: float
    block_size: int
    step_tokens: int
    """Most tokens of a step."""
    state_blocks: int = 1
    """Blocks of a sequence in a group of layers with a state."""
    sharers: int = 1
    """Devices that share the tokens of a sequence."""
    draft_layers: int = 0
    """Layers of attention that a drafter has besides."""


def cache_layout(shape: CostShape, use: CacheUse) -> CacheLayout:
    """Returns the layout of a model on each device.

    Raises:
        ConfigError: The size of the states is not known.
    """
    layers = _layers(shape, use)
    block_size = use.block_size
    attention = [each for each in layers if each.kind != "state"]
    states = [each for each in layers if each.kind == "state"]
    if states and attention:
        alignment = STATE_ALIGNMENT
        if shape.latent is not None:
            alignment = LATENT_STATE_ALIGNMENT
        smallest = min(each.bytes for each in attention)
        needed = alignment * -(-states[0].bytes // (alignment * smallest))
        block_size = max(block_size, int(needed))
    largest = max((each.bytes for each in attention), default=0.0) * block_size
    if not attention:
        largest = states[0].bytes
    size = group_size([each.count for each in layers])
    groups = []
    for each in layers:
        tokens = block_size
        if each.kind != "state" and each.bytes:
            tokens *= max(1, int(largest // (each.bytes * block_size)))
        groups.append(
            Group(
                kind=each.kind,
                count=-(-each.count // size),
                block_size=tokens,
                window=shape.sliding_window,
            )
        )
    return CacheLayout(
        block_bytes=largest * -(-size // use.stages),
        groups=tuple(groups),
        step_tokens=use.step_tokens,
        state_blocks=use.state_blocks,
        sharers=use.sharers,
    )


def _layers(shape: CostShape, use: CacheUse) -> list[Layers]:
    kinds = list(shape.layer_kinds)
    if shape.num_kv_shared_layers:
        kinds = kinds[: max(1, len(kinds) - shape.num_kv_shared_layers)]
    counts = Counter(KEPT[kind] for kind in kinds if kind in KEPT)
    if not shape.sliding_window and counts["window"]:
        counts["full"] += counts.pop("window")
    if counts["full"]:
        counts["full"] += use.draft_layers
    layers = []
    for kind in ("full", "window", "state"):
        if not counts[kind]:
            continue
        if kind == "state":
            if shape.recurrent is None:
                raise ConfigError("the model has layers with a state of an unknown size")
            size = shape.recurrent.sequence_bytes / use.devices
        else:
            size = _token_bytes(shape, kind, use)
        layers.append(Layers(kind=kind, count=counts[kind], bytes=size))
    if not layers:
        size = _token_bytes(shape, "full", use)
        layers.append(
            Layers(kind="full", count=shape.num_hidden_layers + use.draft_layers, bytes=size)
        )
    return layers


def _token_bytes(shape: CostShape, kind: Kept, use: CacheUse) -> float:
    """Returns the bytes of a token in a layer with attention, on one of `devices`."""
    heads = shape.num_key_value_heads
    width = shape.head_dim
    value_width = width
    if shape.latent is not None:
        return shape.cached_bytes(use.devices, use.number_bytes)
    if shape.swa_num_key_value_heads or shape.swa_head_dim:
        value_width = min(shape.v_head_dim, width)
    if kind == "window":
        heads = shape.swa_num_key_value_heads or heads
        width = shape.swa_head_dim or width
        value_width = shape.swa_v_head_dim or shape.swa_head_dim or value_width
    elif shape.global_head_dim:
        heads = shape.num_global_key_value_heads or heads
        width = shape.global_head_dim
        value_width = width
    return use.number_bytes * -(-heads // use.devices) * (width + value_width)
