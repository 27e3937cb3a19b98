"""Whether a tokenizer looks at a word and its neighbours only, as far as its parts tell.

Everything here errs on the side of no: a tokenizer that is not known to be local is always given whole texts.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

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
