"""A stored response: its state, its conversation and, in the background, its events."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gevent.event import Event as Bell
from msgspec import Raw
from msgspec.json import decode

from app.core.base.callers import claim_memory, watched
from app.core.protocol.chat import Message
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode, encode_to_keep
from app.core.server.http.body_limits import WORK_FACTOR
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.errors import too_large
from app.extensions.responses.protocol import ResponseObject
from app.extensions.responses.store_errors import invalid

ENTRY_BYTES = 550
"""Memory of a stored response besides its JSON and events, in bytes; measured."""
EVENT_BYTES = 48
"""Memory of an event besides its text, in bytes: the object's header and its place in a list."""
MAX_HISTORY_BYTES = 16 << 20
"""Longest conversation that a request continues, as JSON: converting it takes 20 ms or so."""
EVENTS_PER_PIECE = 128
"""Most events that are copied for a follower before it takes them, about 40 KB of text tokens."""
END_OF_EVENT = b"\n\n"


@dataclass(slots=True)
class StoredResponse:
    """A response in its present state, and the messages that it answers, both as JSON.

    JSON has a known size. Decoded objects take several times as much, and their `Raw` fields hold
    on to the whole body of the request.

    `events` and `abort` belong to a generation in the background; `events` is None unless the
    client wants them.
    """

    id: str
    status: str
    body: bytes
    """The response as JSON."""
    conversation: bytes
    """The messages as JSON."""
    events: list[bytes] | None = None
    """Rendered events; an event's index is its sequence number."""
    end_of_events: bytes = b""
    """Event after the last one of a cancelled generation, if there is one."""
    abort: Callable[[], None] | None = None
    is_over: bool = False
    encode: Callable[[object], bytes] = encode
    """Encodes responses with the fields that the simulated version has."""
    changed: Bell = field(default_factory=Bell)
    """Is set once, at the next change of the events; followers then wait for the next bell."""

    @property
    def size(self) -> int:
        """Memory of this response, in bytes."""
        events = self.events or ()
        events_bytes = sum(map(len, events)) + EVENT_BYTES * len(events)
        return ENTRY_BYTES + len(self.body) + len(self.conversation) + events_bytes

    def claim_history(self) -> None:
        """Claims the memory of a request that continues this conversation.

        Raises:
            ApiError: 413 for a long conversation.
            MemoryFullError, MemoryExceededError: as `claim_memory`.
        """
        size = len(self.conversation) + len(self.body)
        if size > MAX_HISTORY_BYTES:
            raise too_large(f"The conversation is larger than {MAX_HISTORY_BYTES >> 20} MiB.")
        claim_memory(WORK_FACTOR * size)

    @property
    def messages(self) -> list[Message]:
        """The messages that the response answers."""
        return decode(self.conversation, type=list[Message])

    def items(self) -> list[JsonObject]:
        """Returns the items of the response's output."""
        items: list[JsonObject] = decode(self.body)["output"]
        return items

    def update(self, response: ResponseObject) -> None:
        """Replaces the state."""
        self.status = response.status
        self.body = encode_to_keep(response, self.encode)

    def update_status(self, status: str) -> None:
        """Replaces the status alone."""
        fields = decode(self.body, type=dict[str, Raw])
        fields["status"] = Raw(encode(status))
        self.status = status
        self.body = encode_to_keep(fields)

    def append_events(self, events: bytes, is_over: bool = False) -> None:
        """Appends rendered events, if they are stored, and wakes the followers."""
        if self.events is not None:
            self.events += [event + END_OF_EVENT for event in events.split(END_OF_EVENT)[:-1]]
        self.is_over = is_over
        if is_over:
            self.abort = None  # it holds on to the whole request
        self.wake_followers()

    def wake_followers(self) -> None:
        """Wakes all followers, which then look for new events."""
        self.changed.set()
        self.changed = Bell()

    def follow(self, start: int, connection: ClientConnection | None) -> Iterator[bytes]:
        """Yields the events from number `start` on as they come, until the client leaves."""
        has_left = False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            self.wake_followers()

        yield b""  # sends the status line at once
        with watched(connection, leave):
            while not has_left:
                changed = self.changed
                events = (self.events or [])[start : start + EVENTS_PER_PIECE]
                start += len(events)
                if events:
                    yield b"".join(events)
                elif self.is_over:
                    return
                else:
                    changed.wait()

    def cancel(self) -> None:
        """Ends the generation.

        Raises:
            ApiError: 400 when it is over, or was never in the background.
        """
        if self.abort is None:
            raise invalid("Cannot cancel a synchronous response.", "response_id")
        self.abort()
        self.update_status("cancelled")
        self.append_events(self.end_of_events, is_over=True)
