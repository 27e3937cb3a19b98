"""Messages of the side channel, in MessagePack.

A decode pod sends a `Question` to a prefill pod, which returns an `Answer` with its number. The
request on the wire is [empty, question], as from a ZMQ REQ socket, and so is the reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, msgpack

MAX_PORT = 65_535
MAX_DIGITS = 9
"""Maximum length of a number in a text. Python rejects texts of thousands of digits."""
MAX_KEYS = 20_000
"""Maximum number of keys in a message, whose length is limited."""
MAX_ID_CHARS = 4_096
"""Maximum length of the id of an engine or of a request."""
MAX_KEY_BYTES = 64
"""Maximum length of a block's hash."""
Id: TypeAlias = Annotated[str, Meta(max_length=MAX_ID_CHARS)]
Key: TypeAlias = Annotated[bytes, Meta(max_length=MAX_KEY_BYTES)]
_HOST = re.compile(r"[\w.:%-]{1,253}")
PENDING = "the prefill has not ended"
"""Problem of a read that comes before the blocks. The reader waits for another answer."""


class Read(Struct, frozen=True, tag="read"):
    """Announces that `reader` reads the blocks of a request now."""

    request_id: Id
    reader: Id


class Heartbeat(Struct, frozen=True, tag="heartbeat"):
    """Extends the leases of requests that decode pods wait for. Gets no answer."""

    request_ids: list[Id]


class Done(Struct, frozen=True, tag="done"):
    """Notification that `reader` needs the blocks of a request no more."""

    request_id: Id
    reader: Id


class Lookup(Struct, frozen=True, tag="lookup"):
    """Asks how many of the blocks with these hashes, from the first on, an engine has stored.

    The answer has the number in place of a problem.
    """

    request_id: Id
    keys: list[Key]


class Store(Struct, frozen=True, tag="store"):
    """Copies chunks with these keys into the store of an engine. Gets no answer."""

    keys: list[Key]


LeaseMessage: TypeAlias = Read | Heartbeat | Done
"""A message about blocks that an engine holds."""
Message: TypeAlias = LeaseMessage | Lookup | Store
SendAnswer: TypeAlias = Callable[[str], None]
"""Sends an answer with the given problem, also later."""


class Question(Struct, frozen=True):
    """A message to the engine `engine_id`. Number 0 gets no answer."""

    number: int
    engine_id: Id
    message: Message


class Answer(Struct, frozen=True):
    """The answer to a question; `problem` is empty if the engine has done what it was asked.

    The problem `PENDING` announces another answer.
    """

    number: int
    problem: str = ""


class Source(Struct, frozen=True):
    """The location of a prompt's blocks on a prefill pod."""

    host: str
    port: int
    engine_id: str
    request_id: Id


def number_in(text: str) -> int | None:
    """Returns the number in a text of at most nine digits; None for another text."""
    if len(text) <= MAX_DIGITS and text.isdecimal():
        return int(text)
    return None


encode = msgpack.Encoder().encode
question_decoder = msgpack.Decoder(Question)
answer_decoder = msgpack.Decoder(Answer)


def source_of(params: Mapping[str, object]) -> Source | None:
    """Returns the source that `kv_transfer_params` name; None if a field is missing or invalid."""
    host = params.get("remote_host")
    port = params.get("remote_port")
    engine_id = params.get("remote_engine_id")
    request_id = params.get("remote_request_id")
    if not params.get("remote_block_ids"):
        return None
    return checked_source(host, port, engine_id=engine_id, request_id=request_id)


def checked_source(
    host: object, port: object, *, engine_id: object, request_id: object
) -> Source | None:
    """Returns a source with these values; None if a value is invalid."""
    if not (isinstance(host, str) and _HOST.fullmatch(host)):
        return None
    if type(port) is not int or not 0 < port <= MAX_PORT:
        return None
    if not (isinstance(engine_id, str) and isinstance(request_id, str)):
        return None
    if not request_id or max(len(engine_id), len(request_id)) > MAX_ID_CHARS:
        return None
    return Source(host, port, engine_id, request_id)
