"""Conversations as ShareGPT files have them, one at a time (simulator.md 5.11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import ijson  # type: ignore[import-untyped]

from app.dataset.errors import DatasetError
from app.tokenization import Message

BOM = b"\xef\xbb\xbf"
HUMAN, MODEL = "human", "gpt"
LOOK_BYTES = 4096


class Pair(NamedTuple):
    """A question, everything that was said up to it (with it), and the reply."""

    question: str
    messages: list[Message]
    reply: str


def conversations(file: BinaryIO) -> Iterator[Any]:
    """Every item of the array in `file`, whatever it is; only one is in memory at a time.

    DatasetError when the file is no JSON array.
    """
    start = file.read(LOOK_BYTES)
    if not start.removeprefix(BOM).lstrip().startswith(b"["):
        raise DatasetError("it is not a JSON array of conversations")
    file.seek(len(BOM) if start.startswith(BOM) else 0)
    try:
        yield from ijson.items(file, "item", use_float=True)
    except ijson.JSONError as error:
        raise DatasetError(f"it is not JSON: {_first_line(error.args[0])}") from error


def _first_line(told: str | bytes) -> str:
    text = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
    return text.splitlines()[0]


def pairs(conversation: Any) -> Iterator[Pair]:
    """The questions of a human with their replies, up to the first turn that somebody else has."""
    turns = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(turns, list):
        return
    said: list[Message] = []
    for question, reply in zip(turns[::2], turns[1::2], strict=False):
        asked, answered = _text(question, HUMAN), _text(reply, MODEL)
        if asked is None or answered is None:
            return
        said = [*said, {"role": "user", "content": asked}]
        yield Pair(asked, said, answered)
        said = [*said, {"role": "assistant", "content": answered}]


def _text(turn: Any, speaker: str) -> str | None:
    """What `speaker` says in `turn`; None when the turn is somebody else's or has no text."""
    if not isinstance(turn, dict) or turn.get("from") != speaker:
        return None
    value = turn.get("value")
    return value if isinstance(value, str) else None
