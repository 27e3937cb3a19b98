"""The messages between a server and its template process, over a socket pair.

A message is its length (8 bytes, big-endian) and its bytes. A request is a series of pickles, which
only the server writes; an answer is MessagePack, as a template could have taken over the process
that wrote it.
"""

import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from io import BytesIO

from msgspec import Struct

from app.core.text.base import ChatOptions, Message

LENGTH = struct.Struct(">Q")
MAX_PROMPT_BYTES = 4 << 20
"""Maximum size of a rendered prompt, in addition to twice the size of its request."""
MAX_OTHER_BYTES = 1 << 16
"""Maximum size of an answer beside its prompt."""
MESSAGES_PER_PART = 500
"""Number of messages that are pickled without a pause, in about a millisecond."""


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """A conversation to render with a template of a request.

    `now` is the local time for the template.
    """

    source: str
    special_tokens: Mapping[str, str]
    takes_media: bool
    now: datetime
    options: ChatOptions
    messages: Sequence[Message]


class RenderAnswer(Struct):
    """The prompt in UTF-8 (surrogates pass), or an error."""

    prompt: bytes = b""
    error: str = ""
    param: str | None = None
    is_last: bool = False
    """The process ends after this answer."""


def request_parts(request: RenderRequest) -> Iterator[bytes]:
    """Yields the bytes of a request, without their length; the caller may pause between parts."""
    yield pickle.dumps((replace(request, messages=()), len(request.messages)))
    for start in range(0, len(request.messages), MESSAGES_PER_PART):
        yield pickle.dumps([*request.messages[start : start + MESSAGES_PER_PART]])


def read_request(data: bytes) -> RenderRequest:
    """Reads the bytes of a request."""
    stream = BytesIO(data)
    request: RenderRequest
    request, message_count = pickle.load(stream)
    messages: list[Message] = []
    while len(messages) < message_count:
        messages += pickle.load(stream)
    return replace(request, messages=messages)


def prompt_limit(request_bytes: int) -> int:
    """Returns the maximum size of the prompt for a request of `request_bytes`."""
    return MAX_PROMPT_BYTES + 2 * request_bytes
