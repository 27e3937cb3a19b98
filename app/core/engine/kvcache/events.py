"""KV cache events in vLLM's vocabulary, and their wire layouts in all vLLM versions.

The structs are msgpack maps, as in vLLM 0.24 and later; `encoder` also writes older layouts. A
publisher sends them to a ZMQ address of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from msgspec import Raw, Struct, field
from msgspec.msgpack import Encoder
from msgspec.structs import astuple

from app.core.engine.kvcache.publishing import DEFAULT_LAYOUT, LayoutName

BlockHash: TypeAlias = int | bytes
"""Block hash on the wire: the low 64 bits, or all bytes (16 or 32)."""

PublishedKeys: TypeAlias = list[list[object] | None]
"""Per block the extra keys in its hash (untagged: names, salts, [identifier, offset]), or None."""

Unread: TypeAlias = object
"""Value of a field that no code reads, of any shape: its form differs between versions of vLLM."""

LEGACY: LayoutName = "llm-d-inference-sim"
"""Layout of llm-d's simulator: a missing parent is 0, and extra keys are always nil."""
ARRAYS: dict[LayoutName, tuple[int, int, bool]] = {
    "0.9.0": (6, 2, False),
    "0.9.2": (6, 2, True),
    "0.10.2": (7, 3, True),
    "0.14": (8, 3, True),
    "0.17": (9, 3, True),
    "0.19": (9, 3, True),
    "0.20": (10, 4, True),
    "0.22": (12, 4, True),
    LEGACY: (9, 3, True),
}
"""Lengths of stored and removed events with their names, and whether a batch carries its rank."""
NO_PARENT = Raw(b"\xcf" + bytes(8))
"""0 as a full 64-bit number: llm-d's decoder rejects shorter ones."""


def _gpu() -> str | None:
    return "GPU"


def _none() -> None:
    return None


class BlockStored(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Event: consecutive blocks of one sequence now hold these tokens.

    `token_ids` has `len(block_hashes) * block_size` ids, for all blocks in a row. An event with no
    ids and a `block_size` of 0 adds a medium to known blocks. `parent_block_hash` names the block
    before the first one; None at the start of a prompt.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    # vLLM always sends these two fields. Defaults from a factory are always encoded; constant ones
    # would be omitted.
    medium: str | None = field(default_factory=_gpu)
    lora_name: str | None = field(default_factory=_none)
    extra_keys: PublishedKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Unread = None
    ownership: Unread = None
    session_id: Unread = None
    lookahead_token_ids: Unread = None
    """From vLLM 0.33 on, a list of tokens for each block."""


class BlockRemoved(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Event: this medium no longer holds these blocks.

    Later blocks of the same prompt may remain.
    """

    block_hashes: list[BlockHash]
    medium: str | None = field(default_factory=_gpu)
    group_idx: int | None = None
    locality: Unread = None
    ownership: Unread = None


class AllBlocksCleared(
    Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True
):
    """Event: the engine's cache is empty, in every medium."""

    block_hashes: ClassVar[Sequence[BlockHash]] = ()
    """Always empty, for code that handles all kinds of events."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, gc=False, frozen=True, array_like=True):
    """Events in order, published together at `ts` (Unix seconds) by one data-parallel rank."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def event_bytes(event: KVEvent) -> int:
    """Returns the estimated memory of an event, in bytes."""
    if isinstance(event, BlockStored):
        return 400 + 40 * len(event.token_ids) + 90 * len(event.block_hashes)
    return 200 + 80 * len(event.block_hashes)


def encoder(layout: LayoutName = DEFAULT_LAYOUT) -> Callable[[EventBatch], bytes]:
    """Returns the encoder of batches for `layout`.

    Raises:
        ValueError: The layout is unknown.
    """
    encode = Encoder().encode
    if layout == "map":
        return encode
    if layout not in ARRAYS:
        raise ValueError(f"unknown KV event layout: {layout}")
    stored, removed, has_rank = ARRAYS[layout]

    def array(event: KVEvent) -> Sequence[object]:
        if isinstance(event, AllBlocksCleared):
            return ["AllBlocksCleared"]
        values: list[object] = [type(event).__name__, *astuple(event)]
        if isinstance(event, BlockRemoved):
            return values[:removed]
        if layout == LEGACY:
            values[2] = event.parent_block_hash or NO_PARENT
            values[8] = None
        elif layout == "0.17" and event.extra_keys is not None:  # images without their offsets
            values[8] = [
                keys and [key[0] if isinstance(key, list) else key for key in keys]
                for keys in event.extra_keys
            ]
        return values[:stored]

    def encode_arrays(batch: EventBatch) -> bytes:
        rank = [batch.data_parallel_rank] if has_rank else []
        return encode([batch.ts, list(map(array, batch.events)), *rank])

    return encode_arrays


class EventSource(Protocol):
    """Passes on the KV events of this server."""

    def listen(self, listener: Callable[[str, int, Any], None]) -> None:
        """Calls `listener` with topic, sequence number and batch of all later events."""
