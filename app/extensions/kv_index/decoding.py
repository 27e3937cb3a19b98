"""Decodes batches of events: maps and arrays of all versions of vLLM and SGLang.

A batch of well-formed events is decoded in one step. Any other batch is decoded event by event, so
that only unusable events are lost. Limits on bytes and events of a batch bound the work of one
step.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, TypeAlias

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder

from app.core.base.clock.pause import pause_if_possible
from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEvent,
)
from app.extensions.kv_index.event_layouts import (
    ArrayBatch,
    ArrayCleared,
    ArrayEvent,
    ArrayRemoved,
    ArrayStored,
    RawBatch,
)
from app.extensions.kv_index.metrics import EventLoss, MessageLoss
from app.extensions.kv_index.splitting import split_array
from config.untrusted import (
    MistypedDataError,
    TooDeepError,
    UntrustedDataError,
    decode_untrusted,
)

Data: TypeAlias = bytes | memoryview

MAX_EVENTS = 1 << 16
"""Maximum number of events of a batch."""
MAX_TS = 1 << 34
"""Latest time of publication, in seconds since 1970: in the year 2514."""
EVENTS_PER_PAUSE = 256
"""Number of events decoded one by one, in about 1 ms, before other greenlets run."""
COUNT_BYTES = {0xDC: 2, 0xDD: 4}
"""First byte of a long msgpack array -> bytes of its length."""
MALFORMED: EventLoss = "malformed_event"
BINARY_TYPES = b"\xc4", b"\xc5", b"\xc6"
"""First bytes of binary data in msgpack."""
LONG_ARRAY_TYPES = b"\xdc", b"\xdd"
"""First bytes of arrays of more than 15 items in msgpack."""
FIELDS: Mapping[object, Sequence[str]] = {
    "BlockStored": ArrayStored.__struct_fields__,
    "BlockRemoved": ArrayRemoved.__struct_fields__,
    "AllBlocksCleared": (),
}
"""Name of an event -> fields, in the order of array items."""
ERROR_PLACE = re.compile(r"`\$(?:\.(\w+)|\[(\d+)\])|required field `(\w+)`|length \d+, got (\d+)")
"""Matches the place in msgspec's error: a field, an item, a missing field, or too few items."""

_MAP_BATCH = Decoder(EventBatch)
_ARRAY_BATCH = Decoder(ArrayBatch)
_RAW_BATCH = Decoder(RawBatch)
_RAW_EVENTS = Decoder(list[Raw])
_RANK = Decoder(int | None)
_TS = Decoder(float)
_ANYTHING = Decoder()
_BYTES = Decoder(bytes)
_MAP_EVENT: Decoder[KVEvent] = Decoder(BlockStored | BlockRemoved | AllBlocksCleared)
_ARRAY_EVENT: Decoder[ArrayEvent] = Decoder(ArrayStored | ArrayRemoved | ArrayCleared)


class UnreadableBatchError(Exception):
    """Raised for a payload that is not a batch."""

    reason: ClassVar[MessageLoss] = "unreadable"
    """Reason in the count of lost messages."""


class BatchTooLargeError(UnreadableBatchError):
    """Raised for a batch with more than `MAX_EVENTS` events, or too many bytes."""

    reason = "too_large"


class PodBatch(Struct, frozen=True):
    """A batch of a data-parallel `rank`.

    `ts` is the time of publication, in seconds since 1970. `losses` has reasons for lost events.
    """

    ts: float
    rank: int
    events: Sequence[KVEvent]
    losses: Sequence[str] = ()


def field_losses() -> list[str]:
    """Returns all reasons of the form `bad_<field>`."""
    return sorted({"bad_ts"} | {f"bad_{field}" for fields in FIELDS.values() for field in fields})


def decode(payload: Data | None) -> PodBatch:
    """Decodes a batch. A batch without a valid time has the time 0.

    Raises:
        UnreadableBatchError: the payload is not a batch.
        BatchTooLargeError: the batch has too many events, or `payload` is None.
    """
    if payload is None:
        raise BatchTooLargeError("the batch is too large")
    batch: EventBatch | ArrayBatch
    try:
        batch = decode_untrusted(payload, decoder=_MAP_BATCH)
    except UntrustedDataError:
        try:
            batch = decode_untrusted(payload, decoder=_ARRAY_BATCH)
        except UntrustedDataError:
            return _decode_one_by_one(payload)
    if not _is_time(batch.ts):
        return _decode_one_by_one(payload)
    return PodBatch(batch.ts, batch.data_parallel_rank or 0, batch.events)


def _decode_one_by_one(payload: Data) -> PodBatch:
    try:
        raw = _raw_batch(payload)
        rank = decode_untrusted(raw.data_parallel_rank, decoder=_RANK) or 0
        head = bytes(memoryview(raw.events)[:5])
        if int.from_bytes(head[1 : 1 + COUNT_BYTES.get(head[0], 0)], "big") > MAX_EVENTS:
            raise BatchTooLargeError("the batch has too many events")
        raw_events = _raw_events(raw.events)
    except UntrustedDataError as error:
        raise UnreadableBatchError(str(error)) from None
    losses: list[str] = []
    ts = math.nan
    with suppress(UntrustedDataError):
        ts = decode_untrusted(raw.ts, decoder=_TS)
    if not _is_time(ts):
        ts = 0.0
        losses.append("bad_ts")
    events: list[KVEvent] = []
    for number, raw_event in enumerate(raw_events, 1):
        event = _decode_event(raw_event)
        if isinstance(event, str):
            losses.append(event)
        else:
            events.append(event)
        if number % EVENTS_PER_PAUSE == 0:
            pause_if_possible()
    return PodBatch(ts, rank, events, losses)


def _raw_batch(payload: Data) -> RawBatch:
    """Splits a batch into its fields, also where an event is nested deeper than msgspec reads.

    Raises:
        UntrustedDataError: The payload is not a batch.
    """
    try:
        return decode_untrusted(payload, decoder=_RAW_BATCH)
    except TooDeepError:
        fields = split_array(memoryview(payload))
    if len(fields) < 2:
        raise UntrustedDataError("a batch has a time and events")
    return RawBatch(*fields[:3])


def _raw_events(events: Raw) -> list[Raw]:
    """Splits the events of a batch, also where one is nested deeper than msgspec reads.

    Raises:
        UntrustedDataError: The events are not an array.
    """
    try:
        return decode_untrusted(events, decoder=_RAW_EVENTS)
    except TooDeepError:
        return split_array(memoryview(events))


def _is_time(ts: float) -> bool:
    """Returns whether a time of publication is possible."""
    return 0 <= ts <= MAX_TS


def _decode_event(raw: Data | Raw) -> KVEvent | str:
    """Returns an event, or the reason for its loss."""
    first_byte = bytes(memoryview(raw)[:1])
    try:
        if first_byte in BINARY_TYPES:  # llm-d's storage publishers pack an event by itself
            packed = decode_untrusted(raw, decoder=_BYTES)
            return MALFORMED if packed[:1] in BINARY_TYPES else _decode_event(packed)
        if b"\x90" <= first_byte <= b"\x9f" or first_byte in LONG_ARRAY_TYPES:
            return decode_untrusted(raw, decoder=_ARRAY_EVENT)
        return decode_untrusted(raw, decoder=_MAP_EVENT)
    except MistypedDataError as error:
        return _loss_reason(raw, str(error))
    except UntrustedDataError:
        return MALFORMED


def _loss_reason(raw: Data | Raw, error: str) -> str:
    """Returns the reason for the loss of an event with the `error` of its decoder."""
    name = None
    try:
        event = decode_untrusted(raw, decoder=_ANYTHING)
    except UntrustedDataError:  # behind the field with the wrong type
        return MALFORMED
    if isinstance(event, dict):
        name = event.get("type")
    elif isinstance(event, list) and event:
        name = event[0]
    if not isinstance(name, str):
        return MALFORMED
    fields = FIELDS.get(name)
    place = ERROR_PLACE.search(error)
    if fields is None or place is None:
        return "unknown_event"
    field, item, missing_field, item_count = place.groups()
    return f"bad_{field or missing_field or fields[int(item or item_count) - 1]}"
