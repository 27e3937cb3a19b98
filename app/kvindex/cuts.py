"""Where the ids of a text may be cut, so that a text with the same beginning need not be encoded again.

That depends on whether a tokenizer looks at a word and its neighbours only, as far as its parts tell. All of
that errs on the side of no: a tokenizer that is not known to be local is always given whole texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias
from unicodedata import category

import tokenizers
from tokenizers import models

SPACE_MARK = "▁"
"""What SentencePiece vocabularies have in place of a blank."""

LOCAL_NORMALIZERS = frozenset(
    [
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Strip",
        "StripAccents",
    ]
)
LOCAL_PRE_TOKENIZERS = frozenset(
    [
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "Metaspace",
        "Punctuation",
        "Whitespace",
        "WhitespaceSplit",
    ]
)
FRAMING_PROCESSORS = frozenset(("BertProcessing", "ByteLevel", "RobertaProcessing"))
"""Post-processors that leave the ids of the text alone and put at most some special tokens around them."""

_CLASS = re.compile(r"\[(\^?)\]?(?:\\[pP]\{[^}]*\}|\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([pP])\{[^}]*\}|(.))", re.DOTALL)
_ANCHOR_OR_REFERENCE = re.compile(r"\\[1-9GKk]|\(\?<|\(\?P")
_BLANK = re.compile(r"\\[srntfvhR]|\s")
_ATOM, _WIDE = "\x00", "\x01"
"""A set of characters, and one that goes on from word to word."""
_FAR_REACHING = re.compile(
    r"\(\?[=!](?![^()|*+?{]\))"  # looks ahead further than one character
    r"|\)(?:[*+]|\{)"  # repeats a group
    r"|\x01(?:[*+]|\{\d*,\})[+?]?(?!$|[|)]|\(\?[=!]|.[?*])"  # runs to a sign that may be far away
)


def is_local(backend: tokenizers.Tokenizer) -> bool:
    """Whether the ids of a word depend on the few words around it only: texts can be encoded in parts."""
    if isinstance(backend.model, models.BPE) and backend.model.dropout:
        return False
    return (
        all(map(_is_local_normalizer, _parts(backend.normalizer)))
        and all(map(_is_local_pre_tokenizer, _parts(backend.pre_tokenizer)))
        and all(map(_is_framing, _parts(backend.post_processor)))
    )


def marks_words(backend: tokenizers.Tokenizer) -> bool:
    """Whether a blank begins a token although nothing splits the text at blanks before (Llama 2, Gemma).

    That is so where blanks become marks, and no token of the vocabulary has a mark behind another character:
    merges then never cross the place. Unigram models do not count: their scores are summed over the whole
    text, and the rounding of a long sum may tip the balance between two ways that are as good.
    """
    if not isinstance(backend.model, models.BPE) or not _makes_marks(backend):
        return False
    vocabulary = backend.get_vocab(with_added_tokens=False)
    return SPACE_MARK in vocabulary and not any(
        SPACE_MARK in token.lstrip(SPACE_MARK) for token in vocabulary
    )


def is_local_pattern(pattern: str) -> bool:
    """Whether a match of the regular expression is decided by what it matches and one character more.

    True for those of GPT-2, Llama 3, Qwen, o200k and DeepSeek; in doubt False.
    """
    if _ANCHOR_OR_REFERENCE.search(_CLASS.sub(_ATOM, pattern)):
        return False
    atoms = _CLASS.sub(lambda found: _WIDE if _is_wide(found) else _ATOM, pattern)
    atoms = _ESCAPE.sub(lambda found: _WIDE if (found[1] or found[2]) in "PSDW" else _ATOM, atoms)
    return not _FAR_REACHING.search(atoms.replace(".", _WIDE))


def _is_wide(set_of_characters: re.Match[str]) -> bool:
    content = set_of_characters[0][1:-1]
    return bool(set_of_characters[1]) or bool(_BLANK.search(content) and _BLANK.sub("", content))


def _parts(component: Any) -> list[dict[str, Any]]:
    """The settings of a component and, in place of a sequence, of its members."""
    if component is None:
        return []
    return _flat(json.loads(component.__getstate__()))


def _flat(part: dict[str, Any]) -> list[dict[str, Any]]:
    if part["type"] != "Sequence":
        return [part]
    members = part.get("normalizers") or part.get("pretokenizers") or part.get("processors") or []
    return [each for member in members for each in _flat(member)]


def _is_local_normalizer(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Replace":
        return _is_local_search(part["pattern"])
    return part["type"] in LOCAL_NORMALIZERS


def _is_local_pre_tokenizer(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Split":
        return _is_local_search(part["pattern"])
    return part["type"] in LOCAL_PRE_TOKENIZERS


def _is_local_search(pattern: Mapping[str, str]) -> bool:
    if "String" in pattern:
        return pattern["String"] != ""
    return is_local_pattern(pattern["Regex"])


def _is_framing(part: Mapping[str, Any]) -> bool:
    if part["type"] == "TemplateProcessing":
        return sum("Sequence" in piece for piece in part["single"]) == 1
    return part["type"] in FRAMING_PROCESSORS


def _makes_marks(backend: tokenizers.Tokenizer) -> bool:
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    return replaces in _parts(backend.normalizer) or any(
        part["type"] == "Metaspace" and part["replacement"] == SPACE_MARK
        for part in _parts(backend.pre_tokenizer)
    )


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
    def of(cls, backend: tokenizers.Tokenizer) -> Cutter | None:
        """The cutter of a tokenizer; None where parts of a text are not sure to have the ids of the whole."""
        return cls(backend) if is_local(backend) else None

    def encode(self, text: str) -> CutText:
        """Holds Python's lock for about a sixth of its time. TypeError for half a surrogate pair."""
        [encoding] = self._backend.encode_batch([text], add_special_tokens=False)
        ids = encoding.ids
        starts, marks = self._starts, self._marks
        # A word may also end amid the character that a normaliser made two of: no cut there.
        tokens = zip(ids, encoding.offsets, encoding.word_ids, strict=True)
        cuts = [
            (count, end)
            for count, ((token, (_, end), word), (after, (start, stop), next_word)) in enumerate(
                pairwise(tokens), start=1
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
