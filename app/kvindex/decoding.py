"""Decodes batches of events: maps and arrays of all versions of vLLM and SGLang, integers of any
width.

A batch of well-formed events is decoded in one step. Any other batch is decoded event by event, so
that only unusable events are lost. Limits on bytes and events of a batch bound the work of one
step.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, TypeAlias

import msgspec
from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.msgpack import Decoder

from app.base.clock.pause import pause_if_possible
from app.engine.kvcache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEvent,
)
from app.kvindex.metrics import EventLoss, MessageLoss

Data: TypeAlias = bytes | memoryview

MOST_EVENTS, EVENTS_A_TURN = 1 << 16, 256
"""Most events of a batch, and events decoded one by one, in about 1 ms, before other greenlets run.
"""
COUNT_BYTES = {0xDC: 2, 0xDD: 4}
"""First byte of a long msgpack array -> bytes of its length."""
BROKEN = DecodeError, RecursionError, UnicodeDecodeError
"""Errors of msgspec for invalid msgpack, too deep nesting, and text that is not UTF-8."""

MALFORMED: EventLoss = "malformed_event"
PACKED = b"\xc4", b"\xc5", b"\xc6"
"""First bytes of binary data in msgpack."""


class Unreadable(Exception):
    """Raised for a payload that is no batch."""

    reason: ClassVar[MessageLoss] = "unreadable"
    """Reason in the count of lost messages."""


class TooLarge(Unreadable):
    """Raised for a batch with more than `MOST_EVENTS` events, or too many bytes."""

    reason = "too_large"


class PodBatch(Struct, frozen=True):
    """A batch of a data parallel `rank`, of `ts` (since 1970); `losses` has reasons for lost
    events.
    """

    ts: float
    rank: int
    events: Sequence[KVEvent]
    losses: Sequence[str] = ()


class ArrayStored(BlockStored, gc=False, frozen=True, array_like=True, tag="BlockStored"):
    """`BlockStored` as an array; trailing items may be missing.

    The first simulator has no `token_ids`.
    """

    token_ids: list[int] | None  # type: ignore[assignment]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class ArrayRemoved(BlockRemoved, gc=False, frozen=True, array_like=True, tag="BlockRemoved"):
    """`BlockRemoved` as an array."""

    medium: str | None = None


class ArrayCleared(
    AllBlocksCleared, gc=False, frozen=True, array_like=True, tag="AllBlocksCleared"
):
    """`AllBlocksCleared` as an array."""


ArrayEvent: TypeAlias = ArrayStored | ArrayRemoved | ArrayCleared


class ArrayBatch(Struct, gc=False, array_like=True):
    """A batch of arrays, with or without a rank."""

    ts: float
    events: list[ArrayEvent]
    data_parallel_rank: int | None = None


class RawBatch(Struct, gc=False, array_like=True):
    """A batch with undecoded fields."""

    ts: Raw
    events: Raw
    data_parallel_rank: Raw = Raw(b"\xc0")


_MAP_BATCH = Decoder(EventBatch)
_ARRAY_BATCH = Decoder(ArrayBatch)
_RAW_BATCH = Decoder(RawBatch)
_RAW_EVENTS = Decoder(list[Raw])
_MAP_EVENT: Decoder[KVEvent] = Decoder(BlockStored | BlockRemoved | AllBlocksCleared)
_ARRAY_EVENT: Decoder[ArrayEvent] = Decoder(ArrayStored | ArrayRemoved | ArrayCleared)

FIELDS: Mapping[object, Sequence[str]] = {
    "BlockStored": ArrayStored.__struct_fields__,
    "BlockRemoved": ArrayRemoved.__struct_fields__,
    "AllBlocksCleared": (),
}
"""Name of an event -> fields, in the order of array items."""
PLACE = re.compile(r"`\$(?:\.(\w+)|\[(\d+)\])|required field `(\w+)`|length \d+, got (\d+)")
"""Matches the place in msgspec's error:

a field, the number of an item, a missing field, too few items.
"""


def field_losses() -> list[str]:
    """Returns all reasons of the form `bad_<field>`."""
    return sorted({"bad_ts"} | {f"bad_{field}" for fields in FIELDS.values() for field in fields})


def decode(payload: Data | None) -> PodBatch:
    """Decodes a batch; without a valid time it has the time 0.

    Raises Unreadable, and TooLarge for None.
    """
    if payload is None:
        raise TooLarge("a batch has too many bytes")
    whole: EventBatch | ArrayBatch
    try:
        whole = _MAP_BATCH.decode(payload)
    except BROKEN:
        try:
            whole = _ARRAY_BATCH.decode(payload)
        except BROKEN:
            return _taken_apart(payload)
    if not math.isfinite(whole.ts):
        return _taken_apart(payload)
    return PodBatch(whole.ts, whole.data_parallel_rank or 0, whole.events)


def _taken_apart(payload: Data) -> PodBatch:
    try:
        raw = _RAW_BATCH.decode(payload)
        rank = msgspec.msgpack.decode(raw.data_parallel_rank, type=int | None) or 0
        head = bytes(memoryview(raw.events)[:5])
        if int.from_bytes(head[1 : 1 + COUNT_BYTES.get(head[0], 0)], "big") > MOST_EVENTS:
            raise TooLarge("a batch has too many events")
        values = _RAW_EVENTS.decode(raw.events)
    except BROKEN as error:
        raise Unreadable(str(error)) from None
    ts, losses = math.nan, list[str]()
    with suppress(*BROKEN):
        ts = msgspec.msgpack.decode(raw.ts, type=float)
    if not math.isfinite(ts):
        ts = 0.0
        losses.append("bad_ts")
    events: list[KVEvent] = []
    for number, value in enumerate(values, 1):
        found = _event(value)
        if isinstance(found, str):
            losses.append(found)
        else:
            events.append(found)
        if number % EVENTS_A_TURN == 0:
            pause_if_possible()
    return PodBatch(ts, rank, events, losses)


def _event(raw: Data | Raw) -> KVEvent | str:
    kind = bytes(memoryview(raw)[:1])
    is_array = 0x90 <= kind[0] < 0xA0 or kind in (b"\xdc", b"\xdd") if kind else False
    try:
        if kind in PACKED:  # by itself, as llm-d's storage publishers do
            packed: bytes = msgspec.msgpack.decode(raw)
            return _event(packed) if packed[:1] not in PACKED else MALFORMED
        return _ARRAY_EVENT.decode(raw) if is_array else _MAP_EVENT.decode(raw)
    except ValidationError as error:
        return _reason(msgspec.msgpack.decode(raw), str(error))
    except BROKEN:
        return MALFORMED


def _reason(value: object, error: str) -> str:
    name = None
    if isinstance(value, dict):
        name = value.get("type")
    elif isinstance(value, list) and value:
        name = value[0]
    if not isinstance(name, str):
        return MALFORMED
    fields, found = FIELDS.get(name), PLACE.search(error)
    if fields is None or found is None:
        return "unknown_event"
    field, item, missing, items = found.groups()
    return f"bad_{field or missing or fields[int(item or items) - 1]}"
