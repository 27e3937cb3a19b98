"""Where the ids of a text may be cut, so that a text with the same beginning need not be encoded again."""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from unicodedata import category

import tokenizers

from app.kvindex.locality import SPACE_MARK, is_local, marks_words

Cut: TypeAlias = tuple[int, int]
"""Tokens and characters of the text before a place between two words."""

PROBES = ("a", "One, two.")


@dataclass(frozen=True, slots=True)
class CutText:
    """The ids of a text, without special tokens around it, and its cuts from left to right."""

    ids: list[int]
    cuts: list[Cut]


class Cutter:
    """Encodes with cuts: places where one word of the pre-tokenizer ends and another one begins.

    What follows a cut has the ids of a text of its own, but for a beginning that may be treated specially
    (a mark or blank in front, blanks stripped): whoever joins parts has to see some words alike in both.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.longest_added_token = max(
            (len(token.content) for token in backend.get_added_tokens_decoder().values()), default=0
        )
        """Characters. Such a token is found wherever it stands, even where words would be cut otherwise."""
        self._normalises = backend.normalizer is not None
        self._starts, self._marks = _marked(backend) if marks_words(backend) else (frozenset(), frozenset())

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "Cutter | None":
        """The cutter of a tokenizer; None where parts of a text are not sure to have the ids of the whole."""
        return cls(backend) if is_local(backend) else None

    def encode(self, text: str) -> CutText:
        """Holds Python's lock for about a sixth of its time. TypeError for half a surrogate pair."""
        [encoding] = self._backend.encode_batch([text], add_special_tokens=False)
        ids, offsets, words = encoding.ids, encoding.offsets, encoding.word_ids
        starts, marks = self._starts, self._marks
        # A word may also end amid the character that a normaliser made two of: no cut there.
        following = zip(ids[1:], offsets[1:], words[1:], strict=True)
        cuts = [
            (count, end)
            for count, (token, (_, end), word, (after, (start, stop), next_word)) in enumerate(
                zip(ids, offsets, words, following, strict=False), start=1
            )
            if (word != next_word or (after in starts and token not in marks)) and start >= end < stop
        ]
        if self._normalises and not text.isascii():
            cuts = [(count, end) for count, end in cuts if not _joins_the_character_before(text[end])]
        return CutText(ids, cuts)

    @cached_property
    def frame(self) -> tuple[list[int], list[int]] | None:
        """The special tokens before and after any text; None where that cannot be told."""
        frames = [self._frame(text) for text in PROBES]
        return frames[0] if all(frame == frames[0] for frame in frames) else None

    def _frame(self, text: str) -> tuple[list[int], list[int]] | None:
        plain = self._backend.encode(text, add_special_tokens=False).ids
        framed = self._backend.encode(text, add_special_tokens=True)
        special = framed.special_tokens_mask
        if not plain or 0 not in special:
            return None
        begin = special.index(0)
        end = begin + len(plain)
        if framed.ids[begin:end] != plain or 0 in special[end:]:
            return None
        return framed.ids[:begin], framed.ids[end:]


def _joins_the_character_before(character: str) -> bool:
    """Whether a normaliser may compose it with others or sort it among them; unassigned ones might."""
    kind = category(character)
    return kind[0] == "M" or kind == "Cn"


def _marked(backend: tokenizers.Tokenizer) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of the tokens that begin with a mark, and of those that are nothing but marks."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    starts = {token: token_id for token, token_id in vocabulary.items() if token.startswith(SPACE_MARK)}
    marks = (token_id for token, token_id in starts.items() if not token.strip(SPACE_MARK))
    return frozenset(starts.values()), frozenset(marks)
