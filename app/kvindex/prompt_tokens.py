"""From the text of a prompt to exactly the token ids that its tokenizer gives, mostly from memory.

What is known of the text's beginning is used up to a seam, and the rest is tokenized from a little before the
seam on. Both have to agree on the tokens between: if they do not, the whole text is tokenized.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from msgspec import Struct
from xxhash import xxh64_intdigest

from app.kvindex.prefix_store import Known, PrefixStore
from app.tokenization.base import Tokenizer, TokenizerError

MARGIN_BYTES = 64
"""Before the end of what is known: tokens there may depend on what followed when they were made."""
OVERLAP_TOKENS = 32
"""Tokenized again before the seam."""
AGREEING_TOKENS = 16
"""The last of those, which have to be the same."""
_BLANKS = b" \n\t\r"
_MOST_ENDS = 512


class Seam(Struct, frozen=True):
    """Two places in a text where tokens begin: tokenizing goes on from `start`, and counts from `end`.

    `kept` is how many of the known tokens lie before `end`.
    """

    start: int
    end: int
    kept: int


class PromptTokens:
    """The tokens of texts for one tokenizer; `store` may be shared with others."""

    def __init__(self, tokenizer: Tokenizer, store: PrefixStore | None, lock: threading.Lock) -> None:
        """`lock` guards `store`."""
        self.tokenizer = tokenizer
        # A remote one is asked for whole texts: what its single tokens mean would take a call each.
        self._store = None if tokenizer.longest_token is None else store
        self._lock = lock
        self._root = xxh64_intdigest(tokenizer.name.encode())
        self._around: tuple[list[int], list[int]] | None = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """What `tokenizer.encode` returns. Raises what it raises."""
        body = self._body(text)
        if not add_special_tokens:
            return body
        before, after = self._special()
        return [*before, *body, *after]

    def _body(self, text: str) -> list[int]:
        if self._store is None or len(text) < self._store.chunk_bytes:
            return self.tokenizer.encode(text)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return self.tokenizer.encode(text)  # which says what is wrong with it
        with self._lock:
            known = self._store.lookup(self._root, data, _MOST_ENDS)
        tokens = self._from_seam(data, known)
        if tokens is None:
            tokens = self.tokenizer.encode(text)
        if len(data) - known.end >= self._store.chunk_bytes:
            self._remember(data, tokens)
        return tokens

    def _from_seam(self, data: bytes, known: Known) -> list[int] | None:
        """The tokens with help of what is known; None where it does not help."""
        seam = find_seam(data, known)
        if seam is None:
            return None
        rest = self.tokenizer.encode(data[seam.start :].decode())
        ends = token_ends(self.tokenizer, rest, data[seam.start :])
        if ends is None:
            return None
        try:
            first = ends.index(seam.end - seam.start) + 1
        except ValueError:
            return None
        if first < AGREEING_TOKENS:
            return None
        skipped = len(known.tokens) - len(known.ends)
        same = slice(seam.kept - skipped - AGREEING_TOKENS, seam.kept - skipped)
        if known.tokens[seam.kept - AGREEING_TOKENS : seam.kept] != rest[
            first - AGREEING_TOKENS : first
        ] or known.ends[same] != [seam.start + end for end in ends[first - AGREEING_TOKENS : first]]:
            return None
        return known.tokens[: seam.kept] + rest[first:]

    def _remember(self, data: bytes, tokens: Sequence[int]) -> None:
        ends = token_ends(self.tokenizer, tokens, data)
        if ends is not None and self._store is not None:
            with self._lock:
                self._store.insert(self._root, data, tokens, ends)

    def _special(self) -> tuple[list[int], list[int]]:
        """The tokens that `add_special_tokens` puts before and after a text."""
        if self._around is None:
            sample = "a"
            body = self.tokenizer.encode(sample)
            whole = self.tokenizer.encode(sample, add_special_tokens=True)
            at = next(at for at in range(len(whole)) if whole[at : at + len(body)] == body)
            self._around = whole[:at], whole[at + len(body) :]
        return self._around


def find_seam(data: bytes, known: Known) -> Seam | None:
    """The last seam that what is known allows: both places are where a word begins after a blank."""
    skipped = len(known.tokens) - len(known.ends)
    words = [
        number
        for number, end in enumerate(known.ends)
        if end <= known.end - MARGIN_BYTES and _is_word_start(data, end)
    ]
    while words:
        last = words.pop()
        first = next((word for word in reversed(words) if word <= last - OVERLAP_TOKENS), None)
        if first is None:
            return None
        return Seam(known.ends[first], known.ends[last], skipped + last + 1)
    return None


def token_ends(tokenizer: Tokenizer, tokens: Sequence[int], data: bytes) -> list[int] | None:
    """Where each token ends in a text; None for a tokenizer that changes texts.

    A blank that is put before the first word does not count.
    """
    try:
        pieces = list(map(tokenizer.token_bytes, tokens))
    except TokenizerError:
        return None
    joined = b"".join(pieces)
    extra = len(joined) - len(data)
    if extra not in (0, 1) or joined[extra:] != data or (extra and joined[:1] != b" "):
        return None
    ends, end = [], -extra
    for piece in pieces:
        end += len(piece)
        ends.append(end)
    return ends


def _is_word_start(data: bytes, at: int) -> bool:
    """Whether a blank stands at `at`, alone between two other characters."""
    around = data[at - 1 : at + 2]
    return len(around) == 3 and around[1] in _BLANKS and around[0] not in _BLANKS and around[2] not in _BLANKS
