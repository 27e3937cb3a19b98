"""Long texts: tokenized in pieces, no further than needed, by a few native threads.

The library takes about 200 bytes of memory for each byte of a text (142 to 255 were measured) until
the text is tokenized: 700 MB for a text of 4 MB. In pieces, the same text takes 20 MB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from app.core.base.callers import current_caller
from app.core.base.clock.pause import call_off_hub, pause_if_possible
from app.core.base.fair_slots import NativeThreads
from config.cores import usable_cores

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from app.core.text.base import KeptTokens

T = TypeVar("T")

PIECE = 1 << 14
"""Characters of a piece: about 25 ms of work, so that other texts need not wait for long."""
MAX_SHORT_TEXTS = 4
MAX_LONG_TEXTS = 2
"""Most threads of texts up to a piece, and of longer ones: together they take 25 to 75 MB."""
MAX_UNSHARED_PIECES = 8
"""Texts of up to so many pieces do not share the objects of ids, which takes 6% of the time."""
WINDOW = 1 << 14
"""Characters that are searched at once for the end of a piece."""
LOOKAHEAD = 2
"""Characters behind a cut that decide on it."""
MAX_CHARACTER_BYTES = 3
"""Bytes of a character of most texts that are not ASCII."""
ENCODING_BYTES = 260
"""Memory of a byte of a text until it is tokenized."""
TOKEN_BYTES = 24
"""Memory of a token of a long text in lists and in an answer, in bytes."""
CUTS = (
    re.compile(r"[^\W_](?= [^\W_]|\n[^\W_]|[,.;:!?，。、！？；：])"),
    re.compile(r"[^\W_](?= [^\W_])"),
)
"""Ends of words after which a text may be cut, for most tokenizers and for the other ones."""
PROBES = (
    "Hello world| again and",
    "x1| 2y z",
    "12| 345",
    "  ab| cd  ",
    "Привет| мир",
    "日本| 語 x",
    "the end of it|\nNext line",
    "Zürich|, or Bern",
    "日本語|。テキスト",
    "テキスト|、日本",
    "12|.5 and",
    "Is it|? No",
    "naïve|: ok",
    "so|... then",
    "\n\tdef|; x",
    "We|! They",
)
"""Texts that are tokenized in two parts as they are in one, where a cut is of the first kind."""
SPACE_PROBES = 6
"""Number of the first texts: those with a cut of the second kind."""


class LongTexts:
    """Tokenizes texts with `backend` in native threads; greenlets may share it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._short = NativeThreads(min(MAX_SHORT_TEXTS, max(1, usable_cores() - 1)))
        self._long = NativeThreads(MAX_LONG_TEXTS)
        self._numbers: dict[int, int] = {}
        """Ids of long texts, which share their objects: a new number takes 32 bytes."""

    def encode(self, text: str, add_special_tokens: bool, kept: KeptTokens | None) -> list[int]:
        """Returns the ids of a text: at least those that `kept` names, or all.

        Raises:
            MemoryFullError, MemoryExceededError, SlotsBusyError, ClientLeftError: see there.
        """
        pieces = self._pieces(text)
        if len(pieces) == 1:
            return self._encode_batch([text], add_special_tokens)[0]
        first, last = self._special_ids if add_special_tokens else ([], [])
        from_end = kept is not None and kept.from_end
        runs = [last if from_end else first]
        count = len(runs[0])
        encode = self._encode_shared
        if len(pieces) <= MAX_UNSHARED_PIECES:
            encode = self._encode_piece
        for start, end in reversed(pieces) if from_end else pieces:
            piece = text[start:end]
            runs += self._run(piece, partial(encode, piece))
            count += len(runs[-1])
            if kept is not None and count >= kept.count:
                break
        else:
            runs.append(first if from_end else last)
        if from_end:
            runs.reverse()
        return list(chain.from_iterable(runs))

    def encode_many(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the ids of each text. Raises the errors of `encode`."""
        ids: list[list[int]] = []
        batch: list[str] = []
        size = 0
        for text in texts:
            if batch and size + len(text) > PIECE:
                ids += self._encode_batch(batch, add_special_tokens)
                batch = []
                size = 0
            if len(text) > PIECE:
                ids.append(self.encode(text, add_special_tokens, None))
            else:
                batch.append(text)
                size += len(text)
        if batch:
            ids += self._encode_batch(batch, add_special_tokens)
        return ids

    def offsets(self, text: str, add_special_tokens: bool) -> list[tuple[int, int]]:
        """Returns start and end of each token. Raises the errors of `encode`."""

        def work() -> list[list[tuple[int, int]]]:
            # Unlike `encode`, releases the interpreter.
            encodings = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
            return [encodings[0].offsets]

        return self._run(text, work)[0]

    def _run(self, text: str, work: Callable[[], list[list[T]]]) -> list[list[T]]:
        """Runs work on a text when there is a thread, and memory in the caller's claim."""
        threads = self._short if len(text) <= PIECE else self._long
        caller = current_caller.get()
        claim = None if caller is None else caller.claim
        if claim is None or len(text) <= 2 * PIECE:
            rows = threads.call(work)
        else:  # it has no place to be cut
            byte_count = len(text) if text.isascii() else MAX_CHARACTER_BYTES * len(text)

            def claim_and_work() -> list[list[T]]:
                with claim.lent(ENCODING_BYTES * byte_count):
                    return call_off_hub(work)

            rows = threads.call_here(claim_and_work)
        if claim is not None:
            claim.grow(TOKEN_BYTES * sum(map(len, rows)))
        return rows

    def _encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return self._run("".join(texts), partial(self._encode, texts, add_special_tokens))

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        # Unlike `encode`, releases the interpreter.
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def _encode_shared(self, piece: str) -> list[list[int]]:
        share = self._numbers.setdefault
        return [[share(token_id, token_id) for token_id in self._encode_piece(piece)[0]]]

    def _encode_piece(self, piece: str) -> list[list[int]]:
        return self._encode([piece], False)

    @cached_property
    def _special_ids(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer adds before and after a text."""
        plain, whole = (self._encode(["a"], is_added)[0] for is_added in (False, True))
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        return [], []

    @cached_property
    def cut(self) -> re.Pattern[str] | None:
        """Finds where a text may be cut; None if the ids of a text are not those of its words."""
        backend = self._backend
        if backend.pre_tokenizer is None or getattr(backend.model, "dropout", None):
            return None
        for token in backend.get_added_tokens_decoder().values():
            is_word = token.content[-1:].isalnum()
            if (token.rstrip and is_word) or CUTS[0].search(token.content):
                return None
        for cut, probes in zip(CUTS, (PROBES, PROBES[:SPACE_PROBES]), strict=True):
            if all(map(self._is_divisible, probes)):
                return cut
        return None

    def _is_divisible(self, probe: str) -> bool:
        texts = probe.split("|")
        first, second, both = self._encode([*texts, "".join(texts)], False)
        return first + second == both

    def _pieces(self, text: str) -> list[tuple[int, int]]:
        """Returns start and end of each piece; may pause."""
        pieces = []
        start = 0
        while len(text) - start > PIECE and self.cut is not None:
            end = self._next_cut(text, start + PIECE, self.cut)
            pieces.append((start, end))
            start = end
        if start < len(text) or not pieces:
            pieces.append((start, len(text)))
        return pieces

    def _next_cut(self, text: str, place: int, cut: re.Pattern[str]) -> int:
        while place < len(text):
            match = cut.search(text, place, place + WINDOW)
            if match is not None:
                return match.end()
            place += WINDOW - LOOKAHEAD
            pause_if_possible()
        return len(text)
