"""A cache of the token ids of words, for byte-level BPE vocabularies like GPT-2's.

Such a tokenizer cuts a text at added tokens, then into words by a pattern. Each word has the same
ids in any text. The cache takes a third of the library's time.
"""

import re
from collections.abc import Mapping
from itertools import chain

import msgspec
import tokenizers
from tokenizers import models

from app.core.base.caches import LimitedDict, RecentKeys
from app.core.text.detokenization import byte_symbols
from app.core.text.memo import ENTRY_BYTES, ID_BYTES

find_words = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
).findall
"""Returns the words of an ASCII text by GPT-2's pattern, which `ByteLevel` uses."""
LIMIT_BYTES = 1 << 20
WORD_BYTES = 400
"""Estimated memory of a remembered word, with its ids and its place."""
MAX_WORD_LENGTH = 20
"""Characters of the longest remembered word."""
MAX_SHORT_PART_LENGTH = 10
"""Characters of the longest short part between added tokens, such as a chat template's."""
MIN_LONG_PART_LENGTH = 100
"""Characters of the shortest long part, such as the tools of several requests.

Parts of lengths in between are mostly new, and are not remembered.
"""
PARTS_BYTES = 4 << 20
MAX_REMEMBERED_DIGITS = 2
"""Digits of the longest remembered number: longer ones are too many to be remembered."""


class TextParts(LimitedDict[str, list[int]]):
    """Token ids of added tokens, and of parts of texts between them.

    Short and long parts are remembered from their second use.
    """

    def __init__(
        self, added_tokens: Mapping[str, list[int]], limit_bytes: int = PARTS_BYTES
    ) -> None:
        super().__init__(limit_bytes)
        self._added_tokens = added_tokens
        self._seen = RecentKeys()
        self.clear()

    def clear(self) -> None:
        """Forgets all parts, but not the added tokens."""
        super().clear()
        self.update(self._added_tokens)

    def learn(self, part: str, ids: list[int]) -> None:
        """Remembers the ids of a part that has been learned before."""
        if self._seen.has(part):
            self.add(part, ids, ENTRY_BYTES + len(part) + ID_BYTES * len(ids))


class WordEncoder(LimitedDict[str, list[int]]):
    """Encodes by words, whose ids it remembers; `backend` must have `has_independent_words`."""

    def __init__(self, backend: tokenizers.Tokenizer, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__(limit_bytes)
        self._model = backend.model
        self._symbols = {byte: symbol for symbol, byte in byte_symbols().items()}
        added_tokens = backend.get_added_tokens_decoder().items()
        added_ids = {token.content: [token_id] for token_id, token in added_tokens}
        longest_first = sorted(added_ids, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})").split
        self.parts = TextParts(added_ids)

    def encode(self, text: str) -> list[int] | None:
        """Returns the ids of `text`, without special tokens; None for a text that is not ASCII."""
        if not text.isascii():
            return None
        ids: list[int] = []
        for part in self._split(text):
            part_ids = self.parts.get(part)
            if part_ids is None:
                part_ids = list(chain.from_iterable(map(self.__getitem__, find_words(part))))
                if not MAX_SHORT_PART_LENGTH < len(part) < MIN_LONG_PART_LENGTH:
                    self.parts.learn(part, part_ids)
            ids += part_ids
        return ids

    def __missing__(self, word: str) -> list[int]:
        """Returns the ids of a new word, by the model alone: a third of the time of a batch."""
        ids = [token.id for token in self._model.tokenize(word.translate(self._symbols))]
        is_long_number = word[-1].isdecimal() and len(word.lstrip()) > MAX_REMEMBERED_DIGITS
        if len(word) <= MAX_WORD_LENGTH and not is_long_number:
            self.add(word, ids, WORD_BYTES)
        return ids


def has_independent_words(backend: tokenizers.Tokenizer) -> bool:
    """Returns True when the ids of any text are the ids of its words."""
    model = backend.model
    pre_tokenizer = backend.pre_tokenizer
    if not isinstance(model, models.BPE) or model.dropout or backend.normalizer is not None:
        return False
    if pre_tokenizer is None or backend.encode_special_tokens:
        return False
    settings = msgspec.json.decode(pre_tokenizer.__getstate__())
    if settings.get("type") != "ByteLevel":
        return False
    if settings["add_prefix_space"] or not settings["use_regex"]:
        return False
    return all(
        token.content
        and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        for token in backend.get_added_tokens_decoder().values()
    )
