"""What a model thinks before it replies: all up to `</think>`, as DeepSeek R1 and Qwen3 write it."""

from __future__ import annotations

from typing import Final

from app.engine.outputs import Part, PartReader, Piece
from app.parsing.tags import cut

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
THOUGHT: Final = Part("reasoning")


class ThoughtReader:
    """See `PartReader`. `then` reads what comes behind the thoughts.

    Some templates write the opening tag themselves, so thoughts begin with or without it; unless `begun`,
    only with it.
    """

    def __init__(self, then: PartReader | None, begun: bool = True) -> None:
        self._then, self._begun_before = then, begun
        self._kept = ""
        self._begins = self._thinks = True

    def feed(self, text: str) -> list[Piece]:
        if not self._thinks:
            return self._reply(text)
        self._kept += text
        if self._begins and not self._begun():
            return []
        if not self._thinks:
            rest, self._kept = self._kept, ""
            return self._reply(rest)
        thought, self._kept, found = cut(self._kept, CLOSE)
        pieces: list[Piece] = [(THOUGHT, thought)] if thought else []
        if found:
            self._thinks = False
            rest, self._kept = self._kept, ""
            pieces += self._reply(rest)
        return pieces

    def finish(self) -> list[Piece]:
        kept, self._kept = self._kept, ""
        if self._begins and not self._begun_before:
            pieces = self._reply(kept)
        else:
            pieces = [(THOUGHT, kept)] if kept else []
        return pieces if self._then is None else [*pieces, *self._then.finish()]

    def _begun(self) -> bool:
        """Whether it is certain how it begins; takes the tag away."""
        inner = self._kept.lstrip()
        if OPEN.startswith(inner) and inner != OPEN:  # or nothing but blanks
            return False
        if inner.startswith(OPEN):
            self._kept = inner[len(OPEN) :]
        else:
            self._thinks = self._begun_before
        self._begins = False
        return True

    def _reply(self, text: str) -> list[Piece]:
        if not text:
            return []
        return [(None, text)] if self._then is None else list(self._then.feed(text))
