"""A batch of events off the wire, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from typing import TypeVar

import msgspec
from msgspec import Struct

from app.kvcache.events import EventBatch, KVEvent
from app.kvindex.backend import Steps, at_once
from app.kvindex.decoding import BROKEN, Part, decode_batch, decode_events
from app.kvindex.large_events import LARGE_BYTES, large_event
from app.kvindex.scanning import Data, Malformed, array_at, skip, small_values

WHOLE_BYTES = 1 << 16
"""A payload of no more is decoded in one step if all of its events are well-formed: a millisecond."""
SLICE_EVENTS = 256
SLICE_BYTES = 1 << 15
FEW_VALUES = 64
MANY_VALUES = 1 << 16
"""Values of one byte are no events: so many in a row are not looked at one by one, and so many at once."""
NUMBER_BYTES = 9
"""A number takes no more."""

T = TypeVar("T")


class Unreadable(Exception):
    """The payload is no batch at all."""


class Batch(Struct, frozen=True):
    """When it was published (seconds since 1970) and by which data parallel rank, and the events in parts.

    An empty part is an occasion to let others run.
    """

    ts: float
    rank: int
    parts: Iterable[Part]

    @property
    def events(self) -> list[KVEvent]:
        """All events that can be used."""
        return [event for part in self.parts for event in part.events]

    @property
    def losses(self) -> list[str]:
        """Why others cannot, one reason for each."""
        return [why for part in self.parts for why, count in part.losses.items() for _ in range(count)]


class Slice(Struct, frozen=True, gc=False):
    """Some events in a payload, or `junk` values that are none."""

    start: int
    end: int
    count: int
    junk: bool = False


def batch_of(events: EventBatch, most_tokens: int | None = None) -> Batch:
    """A batch that is decoded; `most_tokens` as of `Part`."""
    return Batch(events.ts, events.data_parallel_rank or 0, (Part(events.events, {}, most_tokens),))


def decode(payload: Data) -> Batch:
    """As `decoding`, without a pause."""
    return at_once(decoding(payload))


def decode_whole(payload: Data) -> Batch | None:
    """The batch of a payload that is small and has nothing wrong in it, None of others."""
    if len(payload) <= WHOLE_BYTES:
        batch = decode_batch(payload)
        if batch is not None and isfinite(batch.ts):
            return batch_of(batch, len(payload))  # a token takes a byte or more
    return None


def decoding(payload: Data) -> Steps[Batch]:
    """The batch of a message. Raises `Unreadable` when not even its parts can be told apart."""
    whole = decode_whole(payload)
    if whole is not None:
        return whole
    try:
        return (yield from _taken_apart(payload))
    except Malformed as error:
        raise Unreadable(str(error)) from None


def _taken_apart(payload: Data) -> Steps[Batch]:
    """Any batch. All of it has to be msgpack before some of it is used."""
    at, values = _array(payload, 0)
    if values < 2:
        raise Unreadable("a batch has a time and events")
    start = at
    at = yield from _end_of(payload, at, 1)
    ts = _number(payload[start:at], float)
    at, left = _array(payload, at)
    slices: list[Slice] = []
    while left:
        found = yield from _next_slice(payload, at, left)
        slices.append(found)
        at, left = found.end, left - found.count
        yield
    start = at
    at = yield from _end_of(payload, at, min(1, values - 2))
    rank = _rank(payload[start:at])
    if (yield from _end_of(payload, at, max(0, values - 3))) != len(payload):
        raise Unreadable("a batch is one value")
    if ts is None or not isfinite(ts):
        return Batch(0.0, rank, PackedParts(payload, slices, [Part((), {"bad_ts": 1})]))
    return Batch(ts, rank, PackedParts(payload, slices))


def _next_slice(payload: Data, at: int, left: int) -> Steps[Slice]:
    junk = small_values(payload, at, min(left, MANY_VALUES))
    if junk > FEW_VALUES:
        return Slice(at, at + junk, junk, junk=True)
    start, count = at, 0
    while count < min(left, SLICE_EVENTS) and at - start < SLICE_BYTES:
        end, inside = skip(payload, at, 1)
        while inside:
            yield
            end, inside = skip(payload, end, inside)
        if end - at > LARGE_BYTES and count:
            break  # has a slice of its own
        at, count = end, count + 1
    return Slice(start, at, count)


def _end_of(payload: Data, at: int, values: int) -> Steps[int]:
    at, left = skip(payload, at, values)
    while left:
        yield
        at, left = skip(payload, at, left)
    return at


def _array(payload: Data, at: int) -> tuple[int, int]:
    found = array_at(payload, at)
    if found is None:
        raise Unreadable("a batch is an array, and so are its events")
    return found


def _number(packed: Data, kind: type[T]) -> T | None:
    if len(packed) > NUMBER_BYTES:
        return None
    try:
        value: T = msgspec.msgpack.decode(packed, type=kind)
        return value
    except BROKEN:
        return None


def _rank(packed: Data) -> int:
    """0 where none is told."""
    if packed in (b"", b"\xc0"):
        return 0
    rank = _number(packed, int)
    if rank is None:
        raise Unreadable("a rank is a number")
    return rank


class PackedParts:
    """The parts of a batch, each decoded when it is asked for."""

    def __init__(self, payload: Data, slices: Sequence[Slice], first: Iterable[Part] = ()) -> None:
        self._payload, self._slices, self._first = payload, slices, first

    def __iter__(self) -> Iterator[Part]:
        return chain(self._first, chain.from_iterable(map(self._parts, self._slices)))

    def _parts(self, at: Slice) -> Iterator[Part]:
        if at.junk:
            return iter((Part((), {"malformed_event": at.count}),))
        if at.count == 1 and at.end - at.start > LARGE_BYTES:
            return large_event(self._payload, at.start, at.end)
        return iter((decode_events(at.count, self._payload[at.start : at.end]),))
