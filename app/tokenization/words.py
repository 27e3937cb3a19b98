"""Short ASCII texts, encoded by the token ids of their words, which are remembered.

A byte-level BPE in the manner of GPT-2 cuts a text at its added tokens, then into words by a pattern, and
encodes each word wherever it stands. Most words of a new text were met before, and to look them up takes a
third of the library's time. Whatever is in doubt is left to the library.
"""

from __future__ import annotations

import re

import msgspec
import tokenizers
from tokenizers import models

WORDS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
).findall
"""GPT-2's pattern, which is that of `ByteLevel`, for ASCII."""
LIMIT_BYTES = 1 << 20
WORD_BYTES = 400
"""Memory of a remembered word, about, with its ids and its place."""
LONGEST_WORD = 20
"""Characters of the longest word that is remembered."""
MOST_NEW = 4
"""A text with more new words is encoded by the library, after so many of them were learnt."""


class WordEncoder:
    """Encodes with `backend`, which `knows_words`."""

    def __init__(self, backend: tokenizers.Tokenizer, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._backend = backend
        added = {token.content: self._ids(token.content) for token in _added_tokens(backend)}
        longest_first = sorted(added, key=len, reverse=True)
        self._added = added
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})").split
        self._known: dict[str, list[int]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory that the remembered words hold."""
        return WORD_BYTES * len(self._known)

    def encode(self, text: str) -> list[int] | None:
        """The ids of `text` with nothing put around it; None when the library has to be asked."""
        if not text.isascii():
            return None
        known, ids, new = self._known, [], 0
        for place, part in enumerate(self._split(text)):
            if place % 2:
                ids += self._added[part]
                continue
            for word in WORDS(part):
                found = known.get(word)
                if found is None:
                    if new == MOST_NEW:
                        return None
                    new += 1
                    found = self._learn(word)
                ids += found
        return ids

    def _learn(self, word: str) -> list[int]:
        """The ids of a new word. Numbers and long words seldom come again, and are not remembered."""
        ids = self._ids(word)
        if len(word) <= LONGEST_WORD and not word[-1].isdecimal():
            if self.size_bytes + WORD_BYTES > self.limit_bytes:
                self._known.clear()  # those that matter are soon here again
            self._known[word] = ids
        return ids

    def _ids(self, text: str) -> list[int]:
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def knows_words(backend: tokenizers.Tokenizer) -> bool:
    """Whether the ids of a text are those of its words, as they are told apart here."""
    model, pre_tokenizer = backend.model, backend.pre_tokenizer
    if not isinstance(model, models.BPE) or model.dropout or backend.normalizer is not None:
        return False
    if pre_tokenizer is None or backend.encode_special_tokens:
        return False
    words = msgspec.json.decode(pre_tokenizer.__getstate__())
    if words.get("type") != "ByteLevel" or words["add_prefix_space"] or not words["use_regex"]:
        return False
    return all(
        token.content and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        for token in _added_tokens(backend)
    )


def _added_tokens(backend: tokenizers.Tokenizer) -> list[tokenizers.AddedToken]:
    return list(backend.get_added_tokens_decoder().values())
