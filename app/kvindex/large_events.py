"""Events that are too large to be decoded in one go, as several: blocks in a row may be stored one by one.

Of a store each further event continues the one before it. Where a field turns out to be wrong halfway, the
blocks before that are used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec.msgpack import Decoder

from app.kvcache.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored
from app.kvindex.decoding import BROKEN, FIELDS, OPTIONAL, Part
from app.kvindex.scanning import NIL, Data, Malformed, array_at, array_of, bytes_at, map_at, skip

LARGE_BYTES = 1 << 15
"""An event of more is large, and so is a field."""
MOST_BLOCK_TOKENS = 1 << 14
"""Tokens of a block of any engine."""
PIECE_BLOCKS = 1024
PIECE_TOKENS = 1 << 14
PIECE_STEPS = 20_000
PIECE_BYTES = 1 << 18
"""What the items of a piece may take to be found, and their bytes."""
NAME_BYTES = 64

T = TypeVar("T")
Parts: TypeAlias = Generator[Part, None, T]
"""Finds a T; meanwhile parts are handed out, of which empty ones are occasions for others to run."""
PAUSE = Part(())

_HASHES: Decoder[list[BlockHash]] = Decoder(list[BlockHash])
_TOKENS: Decoder[list[int]] = Decoder(list[int])
_KEYS: Decoder[list[list[object] | None]] = Decoder(list[list[object] | None])


class Unusable(Exception):
    """The event cannot be used; the message is the reason."""


def large_event(data: Data, start: int, end: int) -> Iterator[Part]:
    """The events that one from `start` to `end` stands for, or why there is none."""
    try:
        event = yield from _open(data, start, end)
        yield from event.parts()
    except Unusable as reason:
        yield Part((), {str(reason): 1})
    except Malformed:
        yield Part((), {"malformed_event": 1})


def _open(data: Data, start: int, end: int) -> Parts[LargeEvent]:
    """The name of an event, and where its fields are."""
    content = bytes_at(data, start)
    if content is not None:  # packed by itself, as llm-d's storage publishers do
        if (yield from _end_of(data, content)) != end:
            raise Malformed
        start = content
    if found := map_at(data, start):
        bounds = yield from _map_fields(data, *found)
        name = _text(data, *bounds["type"]) if "type" in bounds else None
        if name is None:
            raise Malformed
        return LargeEvent(data, name, bounds)
    if found := array_at(data, start):
        return (yield from _array_fields(data, *found))
    raise Malformed


def _map_fields(data: Data, at: int, count: int) -> Parts[dict[str, tuple[int, int]]]:
    """Where the values are of those keys that are fields of events."""
    bounds: dict[str, tuple[int, int]] = {}
    known = {"type", *(field for fields in FIELDS.values() for field in fields)}
    for number in range(count):
        if number % PIECE_BLOCKS == 0:
            yield PAUSE
        key = at
        value = yield from _end_of(data, key)
        at = yield from _end_of(data, value)
        name = _text(data, key, value)
        if name in known:
            bounds[name] = value, at
    return bounds


def _array_fields(data: Data, at: int, count: int) -> Parts[LargeEvent]:
    end = yield from _end_of(data, at)
    name = _text(data, at, end) if count else None
    if name is None:
        raise Malformed
    bounds = {}
    for _, field in zip(range(count - 1), FIELDS.get(name, ()), strict=False):
        at, end = end, (yield from _end_of(data, end))
        bounds[field] = at, end
    return LargeEvent(data, name, bounds)


def _end_of(data: Data, at: int) -> Parts[int]:
    """Where the value at `at` ends."""
    at, left = skip(data, at, 1)
    while left:
        yield PAUSE
        at, left = skip(data, at, left)
    return at


def _text(data: Data, start: int, end: int) -> str | None:
    """A short text, None for anything else."""
    if end - start > NAME_BYTES:
        return None
    try:
        value: object = msgspec.msgpack.decode(data[start:end])
    except BROKEN:
        return None
    return value if isinstance(value, str) else None


class LargeEvent:
    """An event of some name, and where its fields are."""

    def __init__(self, data: Data, name: str, bounds: dict[str, tuple[int, int]]) -> None:
        self._data, self._name, self._bounds = data, name, bounds

    def parts(self) -> Iterator[Part]:
        """The events that it stands for. Raises `Unusable`."""
        match self._name:
            case "BlockStored":
                yield from self._stored()
            case "BlockRemoved":
                medium, group = self._field("medium", str), self._field("group_idx", int)
                hashes = self._items("block_hashes", _HASHES)
                while hashes.left:
                    yield Part([BlockRemoved(hashes.take(PIECE_BLOCKS), medium, group)])
            case "AllBlocksCleared":
                yield Part([AllBlocksCleared()])
            case _:
                raise Unusable("unknown_event")

    def _stored(self) -> Iterator[Part]:
        size = self._field("block_size", int)
        if size is None:
            raise Unusable("bad_block_size")
        hashes = self._items("block_hashes", _HASHES)
        tokens, keys = self._items("token_ids", _TOKENS), self._items("extra_keys", _KEYS)
        _check(hashes.left, tokens.left, keys.left, size)
        parent = self._parent()
        lora_id, lora_name = self._field("lora_id", int), self._field("lora_name", str)
        medium, group = self._field("medium", str), self._field("group_idx", int)
        kind = self._field("kv_cache_spec_kind", str)
        per_block = size if tokens.left else 0
        most = max(1, min(PIECE_BLOCKS, PIECE_TOKENS // max(1, per_block)))
        while hashes.left:
            count = min(most, hashes.left)
            blocks, ids = hashes.take(count), tokens.take(count * per_block)
            extra = keys.take(count) or None
            event = BlockStored(blocks, parent, ids, size, lora_id, medium, lora_name, extra, group, kind)
            parent = blocks[-1]
            yield Part([event])

    def _parent(self) -> BlockHash | None:
        number: BlockHash | None
        try:
            number = self._field("parent_block_hash", int)
        except Unusable:
            number = self._field("parent_block_hash", bytes)
        return number

    def _field(self, name: str, kind: type[T]) -> T | None:
        """A field of one value; None where it is missing and may be."""
        start, end = self._bounds.get(name, (0, 0))
        if start == end and name in OPTIONAL:
            return None
        if not 0 < end - start <= LARGE_BYTES:
            raise Unusable(f"bad_{name}")
        try:
            value: T | None = msgspec.msgpack.decode(self._data[start:end], type=kind | None)
        except BROKEN:
            raise Unusable(f"bad_{name}") from None
        return value

    def _items(self, name: str, decoder: Decoder[list[T]]) -> Items[T]:
        """A field of many values; none where it may be missing and is."""
        start, end = self._bounds.get(name, (0, 0))
        missing = name in OPTIONAL if start == end else self._data[start] == NIL and name != "block_hashes"
        if missing:
            return Items(self._data, name, 0, 0, decoder)
        found = array_at(self._data, start) if start < end else None
        if found is None:
            raise Unusable(f"bad_{name}")
        return Items(self._data, name, *found, decoder)


class Items(Generic[T]):
    """The items of an array, some at a time."""

    def __init__(self, data: Data, field: str, at: int, count: int, decoder: Decoder[list[T]]) -> None:
        self.left = count
        self._data, self._field, self._at, self._decoder = data, field, at, decoder

    def take(self, most: int) -> list[T]:
        """The next ones. Raises `Unusable` where they are of another kind, or far too large."""
        count = min(most, self.left)
        end, inside = skip(self._data, self._at, count, PIECE_STEPS)
        if inside or end - self._at > PIECE_BYTES:
            raise Unusable(f"bad_{self._field}")
        try:
            items = self._decoder.decode(array_of(count, self._data[self._at : end]))
        except BROKEN:
            raise Unusable(f"bad_{self._field}") from None
        self._at = end
        self.left -= count
        return items


def _check(blocks: int, tokens: int, keys: int, size: int) -> None:
    """Raises `Unusable` for numbers that do not belong together."""
    if tokens and not 0 < size <= MOST_BLOCK_TOKENS:
        raise Unusable("bad_block_size")
    if tokens and tokens != blocks * size:
        raise Unusable("token_count")
    if keys and keys != blocks:
        raise Unusable("extra_keys_count")
