"""Reads server-sent events (WHATWG HTML standard, section 9.2): `events_of`, `EventReader`."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from config.untrusted import UntrustedDataError

BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n|\r\r")
LINE_ENDS: Final = (b"\n", b"\r")
MAX_EVENT_BYTES: Final = 64 << 20


class ServerEvent(Struct, frozen=True):
    """An event; `data` and `type` are empty if the server sent only a comment or other fields."""

    raw: bytes
    """All bytes of the event, with the blank line after it."""
    data: bytes
    type: bytes

    @property
    def is_done(self) -> bool:
        """True for the event with which OpenAI's streams end."""
        return self.data.strip() == b"[DONE]"


class EventReader:
    """Splits the bytes of a stream into events."""

    def __init__(self) -> None:
        self.remainder = b""
        """Bytes of an event that has not ended."""

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yields the events that end in a chunk.

        Raises:
            UntrustedDataError: An event is larger than `MAX_EVENT_BYTES`.
        """
        text = self.remainder + chunk
        start = 0
        # A blank line may be split between two chunks.
        for match in BLANK_LINE.finditer(text, max(0, len(self.remainder) - 3)):
            yield _event_of(text[start : match.end()])
            start = match.end()
        self.remainder = text[start:]
        if len(self.remainder) > MAX_EVENT_BYTES:
            raise UntrustedDataError(f"an event is larger than {MAX_EVENT_BYTES >> 20} MiB")


def events_of(chunks: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, ServerEvent]]:
    """Yields the events that have data, with the time of the chunk that ends each event.

    The stream may end without a blank line after the last event.

    Raises:
        UntrustedDataError: An event is larger than `MAX_EVENT_BYTES`.
    """
    reader = EventReader()
    time_s = 0.0
    for time_s, chunk in chunks:
        for event in reader.feed(chunk):
            if event.data:
                yield time_s, event
    if reader.remainder.endswith(LINE_ENDS):
        event = _event_of(reader.remainder)
        if event.data:
            yield time_s, event


def _event_of(raw: bytes) -> ServerEvent:
    data = []
    event_type = b""
    for line in raw.splitlines():
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event_type = value
    return ServerEvent(raw=raw, data=b"\n".join(data), type=event_type)
