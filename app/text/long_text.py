"""Encodes very long texts in parts: the library returns all ids of a text at once, holding the event loop.

A text is cut between words, and only where the tokenizer shows that the cut changes nothing: some thousand
characters around it have the same ids in two parts as in one. Tokenizers look no further than a few words. A
text without such a place is encoded as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import tokenizers

PART = 100_000
"""Characters of a part: some milliseconds to hand over its ids, a twentieth of a second to make them."""
MARGIN = 1_000
"""Characters before and after a cut whose ids prove it."""
TRIES = 20
"""Most places between words to try, and most other places."""
PROBE: Final = "a"


class LongTextEncoder:
    """Encodes with `backend`, in parts of about `part` characters. Called beside the event loop."""

    def __init__(self, backend: tokenizers.Tokenizer, part: int = PART, margin: int = MARGIN) -> None:
        self._backend = backend
        self._part = part
        self._margin = margin

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the ids of the whole `text`. Raises TypeError for half a surrogate pair."""
        if len(text) <= self._part + self._margin:
            return self._ids(text, add_special_tokens)
        frame = self._frame() if add_special_tokens else ([], [])
        if frame is None:
            return self._ids(text, add_special_tokens)
        ids = list(frame[0])
        # One object for each id: another for every token would take four times the memory, in pieces so small
        # that whatever else is made meanwhile keeps the process from giving it back.
        same: dict[int, int] = {}
        start = 0
        while len(text) - start > self._part + self._margin:
            end = self._cut(text, start + self._part)
            if end is None:
                return self._ids(text, add_special_tokens)
            ids += [same.setdefault(each, each) for each in self._ids(text[start:end])]
            start = end
        ids += [same.setdefault(each, each) for each in self._ids(text[start:])]
        ids += frame[1]
        return ids

    def encode_many(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the ids of each text."""
        if max(map(len, texts), default=0) > self._part:
            return [self.encode(text, add_special_tokens) for text in texts]
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def _ids(self, text: str, add_special_tokens: bool = False) -> list[int]:
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _cut(self, text: str, near: int) -> int | None:
        """Returns a place shortly before `near` where the text may be cut; None when none is found."""
        ends = islice(_ends_of_words(text, near, self._margin), TRIES)
        place: int
        for place in (*ends, *range(near - TRIES, near)):
            before, behind = text[max(0, place - self._margin) : place], text[place : place + self._margin]
            in_number = before[-1].isnumeric() and behind[0].isnumeric()  # digits may be counted from the end
            if not in_number and self._ids(before) + self._ids(behind) == self._ids(before + behind):
                return place
        return None

    def _frame(self) -> tuple[list[int], list[int]] | None:
        """Returns the special tokens before and after any text; None where they are not clear."""
        plain, framed = self._ids(PROBE), self._ids(PROBE, True)
        for begin in range(len(framed) - len(plain) + 1):
            if framed[begin : begin + len(plain)] == plain:
                return framed[:begin], framed[begin + len(plain) :]
        return None


def _ends_of_words(text: str, near: int, count: int) -> Iterator[int]:
    """Yields places among the `count` before `near` where the kind of character changes, nearest first."""
    kind = _kind(text[near])
    for place in range(near, near - count, -1):
        before = _kind(text[place - 1])
        if before != kind:
            yield place
        kind = before


def _kind(character: str) -> str:
    if character.isalpha():
        return "letter"
    if character.isspace():
        return "blank"
    return "digit" if character.isnumeric() else "sign"
