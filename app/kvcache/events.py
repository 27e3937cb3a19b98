"""What happens to blocks of a KV cache, in the words of vLLM's event stream and the layouts of all versions.

The structs are msgpack maps as vLLM 0.24 and later publish them; `encoder` writes them in older layouts too
(kv-cache specification, section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

from msgspec import Raw, Struct, field
from msgspec.msgpack import Encoder

from app.kvcache.hashing import all_low64, low64
from app.kvcache.prompt import Adapter, ExtraKeys

BlockHash: TypeAlias = int | bytes
"""A block's name on the wire: the low 64 bits of its hash, or all bytes of it (16 or 32)."""

PublishedKeys: TypeAlias = list[list[object] | None]
"""Per block what its hash covers besides tokens (untagged: names, salts, [identifier, offset]), or None."""

GROUP, MEDIUM = 0, "GPU"
"""Given to every event: the defaults of its fields cost a call each."""
SPEC_KIND = "full_attention"


class BlockStored(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Consecutive blocks of one sequence now hold these tokens.

    `token_ids` are those of all blocks in a row, `len(block_hashes) * block_size` of them; none (and a
    `block_size` of 0) where the event only says that known blocks are now in another medium too.
    `parent_block_hash` names the block before the first one, None at the start of a prompt.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    # vLLM always sends these two. A default from a factory is not left out, one that is a value would be.
    medium: str | None = field(default_factory=lambda: "GPU")
    lora_name: str | None = field(default_factory=lambda: None)
    extra_keys: PublishedKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[int] | None = None


class BlockRemoved(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Blocks that this medium no longer holds; the blocks of a prompt behind them may stay."""

    block_hashes: list[BlockHash]
    medium: str | None = field(default_factory=lambda: "GPU")
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """The cache of this engine is empty, in every medium."""

    block_hashes: ClassVar[Sequence[BlockHash]] = ()
    """It names none."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, gc=False, frozen=True, array_like=True):
    """Events in their order, published together at `ts` (seconds since 1970) by one data parallel rank."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def event_bytes(event: KVEvent) -> int:
    """About what an event takes in memory: numbers of 32 bytes, and their places in lists."""
    match event:
        case BlockStored():
            return 400 + 40 * len(event.token_ids) + 90 * len(event.block_hashes)
        case BlockRemoved():
            return 200 + 80 * len(event.block_hashes)
    return 100


class EventLog:
    """The events of a cache of one full-attention group, in order, until they are taken.

    Hashes are carried as numbers of 64 bits, or as bytes without `int_hashes`. If not `wanted`, none is.
    """

    def __init__(self, wanted: bool, int_hashes: bool, block_size: int) -> None:
        self._wanted = wanted
        self._int_hashes = int_hashes
        self._block_size = block_size
        self.pending: list[KVEvent] = []

    def take(self) -> list[KVEvent]:
        events, self.pending = self.pending, []
        return events

    def stored(
        self,
        hashes: Sequence[bytes],
        parent: bytes | None,
        token_ids: Sequence[int],
        first: int,
        keys: ExtraKeys,
        adapter: Adapter | None,
    ) -> None:
        """Blocks from number `first` of a sequence on hold the first of `token_ids`."""
        if not self._wanted:
            return
        self.pending.append(
            BlockStored(
                block_hashes=self._wire(hashes),
                parent_block_hash=low64(parent) if parent is not None and self._int_hashes else parent,
                token_ids=list(token_ids[: len(hashes) * self._block_size]),
                block_size=self._block_size,
                lora_id=adapter.id if adapter else None,
                medium=MEDIUM,
                lora_name=adapter.name if adapter else None,
                extra_keys=keys.published(first, first + len(hashes)),
                group_idx=GROUP,
                kv_cache_spec_kind=SPEC_KIND,
            )
        )

    def removed(self, hashes: Sequence[bytes]) -> None:
        """These blocks make room, one after the other: an event each, as from vLLM."""
        if self._wanted:
            self.pending += [BlockRemoved([name], MEDIUM, GROUP) for name in self._wire(hashes)]

    def cleared(self) -> None:
        if self._wanted:
            self.pending.append(AllBlocksCleared())

    def _wire(self, hashes: Sequence[bytes]) -> list[BlockHash]:
        return list(all_low64(hashes)) if self._int_hashes else list(hashes)


LayoutName: TypeAlias = Literal[
    "map", "0.9.0", "0.9.2", "0.10.2", "0.14", "0.17", "0.19", "0.20", "0.22", "llm-d-inference-sim"
]
"""`map` is vLLM 0.24 and later; a number is the first vLLM of a layout of arrays."""

LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
DEFAULT_LAYOUT: LayoutName = "map"

Encode: TypeAlias = Callable[[EventBatch], bytes]


class Arrays(Struct, frozen=True):
    """How many items the arrays of an older vLLM have, the event's name first.

    `rank` is whether a batch has one; `offsets` whether extra keys of images, where there are extra keys, are
    pairs with an offset. `legacy` is llm-d's simulator: 0 for no parent, extra keys always nil.
    """

    stored: int
    removed: int
    rank: bool = True
    offsets: bool = True
    legacy: bool = False

    def event(self, event: KVEvent) -> Sequence[object]:
        match event:
            case BlockStored():
                parent: object = event.parent_block_hash
                keys = event.extra_keys if self.offsets else _without_offsets(event.extra_keys)
                if self.legacy:
                    parent, keys = _NO_PARENT if parent is None else parent, None
                return [
                    "BlockStored",
                    event.block_hashes,
                    parent,
                    event.token_ids,
                    event.block_size,
                    event.lora_id,
                    event.medium,
                    event.lora_name,
                    keys,
                    event.group_idx,
                    event.kv_cache_spec_kind,
                    event.kv_cache_spec_sliding_window,
                ][: self.stored]
            case BlockRemoved():
                removed = ["BlockRemoved", event.block_hashes, event.medium, event.group_idx]
                return removed[: self.removed]
        return ["AllBlocksCleared"]


_ARRAYS: dict[LayoutName, Arrays] = {
    "0.9.0": Arrays(stored=6, removed=2, rank=False),
    "0.9.2": Arrays(stored=6, removed=2),
    "0.10.2": Arrays(stored=7, removed=3),
    "0.14": Arrays(stored=8, removed=3),
    "0.17": Arrays(stored=9, removed=3, offsets=False),
    "0.19": Arrays(stored=9, removed=3),
    "0.20": Arrays(stored=10, removed=4),
    "0.22": Arrays(stored=12, removed=4),
    "llm-d-inference-sim": Arrays(stored=9, removed=3, legacy=True),
}

_NO_PARENT = Raw(b"\xcf" + bytes(8))
"""0 in all its 64 bits: llm-d's decoder knows no shorter numbers."""


def encoder(layout: LayoutName = DEFAULT_LAYOUT) -> Encode:
    """How a batch is written in `layout`. ValueError for an unknown one."""
    encode = Encoder().encode
    if layout == "map":
        return encode
    arrays = _ARRAYS.get(layout)
    if arrays is None:
        raise ValueError(f"unknown layout of KV events {layout}")

    def encode_arrays(batch: EventBatch) -> bytes:
        events = list(map(arrays.event, batch.events))
        return encode([batch.ts, events, batch.data_parallel_rank] if arrays.rank else [batch.ts, events])

    return encode_arrays


def _without_offsets(extra_keys: PublishedKeys | None) -> PublishedKeys | None:
    if extra_keys is None:
        return None
    return [keys and [key[0] if isinstance(key, list) else key for key in keys] for keys in extra_keys]
