"""Requests and answers of two runs, side by side. Start at `pairing_of`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from app.core.server.http.event_stream import EventReader
from app.extensions.recording.comparison import BY_TEXT
from app.extensions.recording.exchange import Exchange, bytes_of, header_of
from config.untrusted import UntrustedDataError, decode_untrusted

FIRST_ERROR_STATUS = 400
EVENT_STREAM = "text/event-stream"
ROOT = "$"
Leaf = tuple[str, object]
"""The path of a value that is no object and no filled list, and the value."""


class Event(NamedTuple):
    """A part of an answer: the whole body, or an event of a stream."""

    name: str
    """Name of the event; empty for a body, and for an event without a name."""
    data: Any
    """Decoded JSON."""


class Traffic:
    """A recorded exchange, decoded."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    @property
    def path(self) -> str:
        """Path of the request, without its query."""
        return self.exchange.request.target.partition("?")[0]

    @property
    def route(self) -> str:
        """Method and path."""
        return f"{self.exchange.request.method} {self.path}"

    @property
    def status(self) -> int:
        """Status of the answer."""
        return self.exchange.answer.status

    @property
    def is_success(self) -> bool:
        """True for an answer that is no error."""
        return self.status < FIRST_ERROR_STATUS

    @property
    def is_stream(self) -> bool:
        """True for a stream of events."""
        content_type = header_of(self.exchange.answer.headers, "content-type")
        return content_type.startswith(EVENT_STREAM)

    @cached_property
    def request(self) -> Any:
        """The decoded body of the request; None if it is not JSON."""
        return _decoded(bytes_of(self.exchange.request.body))

    @cached_property
    def body(self) -> bytes:
        """The body of the answer."""
        return self.exchange.answer.body()

    @cached_property
    def events(self) -> Sequence[Event]:
        """The answer, or its events, as far as they are JSON."""
        if not self.is_stream:
            value = _decoded(self.body)
            return () if value is None else (Event("", value),)
        reader = EventReader()
        events = []
        for event in reader.feed(self.body + b"\n\n"):
            value = _decoded(event.data)
            if value is not None:
                events.append(Event(event.type.decode("utf-8", "replace"), value))
        return events


class Pair(NamedTuple):
    """A request and its answers by both versions."""

    old: Traffic
    new: Traffic

    @property
    def succeeds(self) -> bool:
        """True if both answers are successes."""
        return self.old.is_success and self.new.is_success


class Pairing(NamedTuple):
    """The requests of two runs, side by side."""

    pairs: Sequence[Pair]
    unsent: Sequence[Exchange]
    """Exchanges of the old run whose requests the new run has not sent."""


def pairing_of(old: Iterable[Exchange], new: Iterable[Exchange]) -> Pairing:
    """Returns the requests that both runs have sent.

    Requests to a route that have the same body belong together, in their order, because concurrent
    ones come in any order. Of the others, the first belongs to the first one, and so on: they
    differ because earlier answers did.
    """
    waiting: defaultdict[tuple[str, bytes], list[Traffic]] = defaultdict(list)
    for exchange in new:
        traffic = Traffic(exchange)
        waiting[traffic.route, bytes_of(exchange.request.body)].append(traffic)
    pairs: list[Pair] = []
    unmatched: defaultdict[str, list[Traffic]] = defaultdict(list)
    for exchange in old:
        traffic = Traffic(exchange)
        equal = waiting[traffic.route, bytes_of(exchange.request.body)]
        if equal:
            pairs.append(Pair(traffic, equal.pop(0)))
        else:
            unmatched[traffic.route].append(traffic)
    remaining: defaultdict[str, list[Traffic]] = defaultdict(list)
    for (route, _), others in waiting.items():
        remaining[route] += others
    unsent: list[Exchange] = []
    for route, others in unmatched.items():
        pairs += map(Pair, others, remaining[route])
        unsent += (traffic.exchange for traffic in others[len(remaining[route]) :])
    return Pairing(pairs, unsent)


def leaves_of(events: Iterable[Event]) -> Iterator[Leaf]:
    """Yields the values of an answer with their paths; the events of a stream share the paths."""
    for event in events:
        yield from _leaves(event.data, f"{event.name} {ROOT}".lstrip())


def _leaves(value: object, path: str) -> Iterator[Leaf]:
    if isinstance(value, dict) and value:
        # The keys of maps by token are texts or numbers, and no fields.
        is_by_token = name_of(path) in BY_TEXT or all(map(str.isdecimal, value))
        for name, member in value.items():
            yield from _leaves(member, f"{path}.*" if is_by_token else f"{path}.{name}")
    elif isinstance(value, list) and value:
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value


def has_value(leaf: object) -> bool:
    """Returns whether a client can use a value: it is not null, and no empty text or list."""
    return leaf is not None and leaf not in ("", [], {})


def prefixes_of(path: str) -> Iterator[str]:
    """Yields a path and the paths of the objects around it below the root, the longest first."""
    root = path.index(ROOT)  # behind the name of an event, which can have dots
    while "." in path[root:]:
        yield path.removesuffix("[]")
        path = path.rpartition(".")[0]


def name_of(path: str) -> str:
    """Returns the last name of a path."""
    return path.rpartition(".")[2].replace("[]", "")


def _decoded(body: bytes) -> Any:
    try:
        return decode_untrusted(body)
    except UntrustedDataError:
        return None
