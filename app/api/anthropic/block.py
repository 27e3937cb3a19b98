"""The content blocks that a message of the Anthropic family consists of."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from app.engine.outputs import Part


class Block(Struct):
    """One content block and what it holds so far; `part` None is text."""

    part: Part | None
    mark: str = ""
    """The id of a tool use, the signature of a thought."""
    texts: list[str] = []

    @property
    def kind(self) -> str:
        """`text`, `reasoning` or `call`."""
        return "text" if self.part is None else self.part.kind

    def opening(self) -> dict[str, Any]:
        """The block before anything is in it."""
        if self.part is None:
            return {"type": "text", "text": ""}
        if self.part.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "tool_use", "id": self.mark, "name": self.part.name, "input": {}}

    def whole(self) -> dict[str, Any]:
        """The block with all that is in it."""
        text = "".join(self.texts)
        if self.kind == "text":
            return {**self.opening(), "text": text}
        if self.kind == "reasoning":
            return {**self.opening(), "thinking": text, "signature": self.mark}
        return {**self.opening(), "input": _input(text)}


def _input(arguments: str) -> dict[str, Any]:
    """The input of a tool; empty when the call was cut off before its end."""
    try:
        parsed = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
