"""Reads conversations: start with `read_conversations` and `read_conversation`.

A file is a JSON array of conversations, or has one in each line, and may be compressed with gzip. A
conversation has turns with `from` and `value` (ShareGPT), or messages with `role` and `content`.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import ijson  # type: ignore[import-untyped]

from app.core.engine.errors import DatasetError
from app.core.text.base import Message
from config.lines import MAX_LINE_BYTES, read_lines
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
HEAD_BYTES = 4096
"""Bytes of the file that must show its first character that is not blank."""
MAX_LEVELS = 100
"""Most levels of lists and objects in the file."""
TURN_KEYS = ("conversations", "conversation", "messages")
"""Keys of the list of turns."""
USER = "user"
ASSISTANT = "assistant"
SYSTEM = "system"
ROLES = {
    "human": USER,
    "user": USER,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "assistant": ASSISTANT,
    "model": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "system": SYSTEM,
    "developer": SYSTEM,
}
"""Roles by the names of speakers."""


class Exchange(NamedTuple):
    """A question with its reply."""

    question: str
    messages: list[Message]
    """All messages up to the question."""
    reply: str


class Conversation(NamedTuple):
    """The exchanges of a conversation, and the number of its turns that are in none."""

    exchanges: list[Exchange]
    left_out: int


def read_conversation(conversation: object) -> Conversation:
    """Returns the exchanges of a conversation, up to the first turn of the wrong kind.

    Turns of the system come before a question. A conversation that begins with a reply, as a page
    of a long one does, is read from its first question.
    """
    turns = _turns(conversation)
    messages: list[Message] = []
    exchanges: list[Exchange] = []
    question: str | None = None
    used = 0
    pending = 0
    for turn in turns:
        role, text = _role_and_text(turn)
        if role == ASSISTANT and question is None and not exchanges:
            continue  # nothing has asked for it
        if text is None or (role == ASSISTANT) != (question is not None):
            break
        pending += 1
        if role == ASSISTANT:
            assert question is not None
            exchanges.append(Exchange(question, [*messages], text))
            used += pending
            pending = 0
            question = None
        elif role == USER:
            question = text
        messages.append({"role": role, "content": text})
    return Conversation(exchanges, len(turns) - used)


def _turns(conversation: object) -> list[object]:
    if isinstance(conversation, list):
        return conversation
    if isinstance(conversation, dict):
        for key in TURN_KEYS:
            if isinstance(conversation.get(key), list):
                turns: list[object] = conversation[key]
                return turns
    return []


def _role_and_text(turn: object) -> tuple[str, str | None]:
    """Returns the role and the text of a turn; no text for one that no chat can have."""
    if not isinstance(turn, dict):
        return "", None
    speaker = turn.get("from", turn.get("role"))
    role = ROLES.get(speaker.lower(), "") if isinstance(speaker, str) else ""
    content = turn.get("value", turn.get("content"))
    if isinstance(content, list):
        content = _joined(content)
    if not role or not isinstance(content, str) or turn.get("tool_calls"):
        return role, None
    return role, content


def _joined(parts: list[object]) -> str | None:
    """Returns the text of a message of several texts; None if it has other parts."""
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "\n".join(texts)


def read_conversations(file: BinaryIO) -> Iterator[object]:
    """Yields the conversations in `file`.

    Raises:
        DatasetError: The file is no JSON array, and has no JSON in its lines.
        OSError: The file cannot be read.
    """
    stored = io.BufferedReader(_Whole(file))
    try:
        if stored.peek(2)[:2] == GZIP_MAGIC:
            yield from _conversations_of(io.BufferedReader(gzip.GzipFile(fileobj=stored)))
        else:
            yield from _conversations_of(stored)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(f"the file cannot be decompressed: {error}") from None


class _Whole(io.RawIOBase):
    """The bytes of a file that has only `read`, for a reader that can look ahead."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _conversations_of(reader: io.BufferedReader[Any]) -> Iterator[object]:
    head = reader.peek(HEAD_BYTES).removeprefix(BOM).lstrip()
    if head.startswith(b"{"):
        yield from _lines_of(reader)
        return
    if not head.startswith(b"["):
        raise DatasetError(
            "the file is not a JSON array of conversations, and has no JSON objects in its lines"
        )
    parts = _BoundedParts(reader.read(HEAD_BYTES).removeprefix(BOM), reader)
    try:
        for conversation in _items_of(parts):
            parts.begin_item()
            yield conversation
    except ijson.JSONError as error:
        message = error.args[0]
        if isinstance(message, bytes):
            message = message.decode(errors="replace")
        raise DatasetError(f"the file is not valid JSON: {str(message).splitlines()[0]}") from error


def _lines_of(reader: io.BufferedReader[Any]) -> Iterator[object]:
    """Yields the JSON values of lines.

    Raises:
        DatasetError: a line is not JSON.
        OSError: a line is too long.
    """
    for number, line in enumerate(read_lines(reader, ""), 1):
        line = line.removeprefix(BOM)
        if not line.strip():
            continue
        try:
            yield decode_untrusted(line, decoder=python_json)
        except UntrustedDataError as error:
            raise DatasetError(f"line {number} of the file is not valid JSON: {error}") from None


def _items_of(parts: _BoundedParts) -> Iterator[object]:
    """Yields the items of a JSON array.

    `ijson.items` would write the path of each value: for hours, where the nesting is deep.

    Raises:
        DatasetError: an item is nested too deeply.
    """
    depth = 0
    builder = ijson.ObjectBuilder()
    for event, value in ijson.basic_parse(parts, use_float=True):
        is_end = event in ("end_map", "end_array")
        depth += (event in ("start_map", "start_array")) - is_end
        if depth > MAX_LEVELS:
            raise DatasetError(f"the file is nested more than {MAX_LEVELS} levels deep")
        if depth == 0 or (depth == 1 and event == "start_array" and not is_end):
            continue  # the array itself
        builder.event(event, value)
        if depth == 1:
            yield builder.value
            builder = ijson.ObjectBuilder()


class _BoundedParts:
    """The bytes of a file after its `head`, while each item of its array is of a limited size.

    The file may have any size, but an item is decoded as a whole.
    """

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head = head
        self._file = file
        self._item_bytes = 0

    def begin_item(self) -> None:
        """Begins to count the bytes of the next item."""
        self._item_bytes = 0

    def read(self, size: int) -> bytes:
        """Returns the next bytes.

        Raises:
            DatasetError: the item is too large.
        """
        if size and self._head:
            part = self._head
            self._head = b""
        else:
            part = self._file.read(size)
        self._item_bytes += len(part)
        if self._item_bytes > MAX_LINE_BYTES:
            raise DatasetError(
                f"a conversation of the array is larger than {MAX_LINE_BYTES >> 20} MiB"
            )
        return part
