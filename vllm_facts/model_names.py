"""Names of models: short names, copies by other owners, and repacks. Start reading at `copies_of`.

A copy has the name of a model, and a repack has the name of a model with words for its format at
the end. The owner, the case, and the maker in Meta-Llama-3.1-8B do not matter.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

CHAT_SUFFIXES = ("", "-instruct", "-it", "-chat")
"""Ends of names that a short name may leave out."""
FORMAT_WORDS = {
    **{word: word for word in ("awq", "gptq", "fp8", "nvfp4", "mxfp4", "mxfp8", "fp4")},
    **{word: word for word in ("int4", "int8", "gguf", "bnb", "bf16", "quantized")},
    **{word: word for word in ("w8a8", "w4a16", "w8a16", "w4a8")},
    **{"autoround": "int4", "4bit": "int4", "8bit": "int8", "fp16": "bf16", "nvfp4a16": "nvfp4"},
}
"""Word at the end of the name of a repack -> format of its weights."""
EIGHT_BITS = frozenset(("int8", "w8a8", "w8a16"))
METHODS = frozenset(("awq", "gptq"))
VAGUE_FORMATS = frozenset((*METHODS, "quantized"))
"""Formats of 4 or 8 bits, which another word can state."""
WORDS_OF_REPACKS = frozenset(
    (
        *("dynamic", "static", "block", "pertensor", "marlin", "kv", "quant", "mixed", "sym"),
        *("asym", "quark", "ct", "128g", "unsloth", "torchao", "round", "auto", "actorder"),
        *("true", "pertoken", "channel", "qat"),
    )
)
"""Other words at the end of the name of a repack."""
_GROUP = re.compile(r"g\d{1,4}")
_SEPARATOR = re.compile(r"[-_.]")
_SIZE = re.compile(r"(?<![a-z0-9.])[ae]?\d+(?:\.\d+)?[bmt](?![a-z0-9])")
MAX_WORDS = 8
"""Most words at the end of a name that describe a format."""
_MAKER = re.compile(r"^(?:meta-(?=llama)|nvidia-(?=nemotron))")
"""Maker at the beginning of a name, which newer names leave out."""
FILES_SUFFIX = "-hf"
"""End of names whose files are in the format of the hub."""
SAME_WEIGHTS = ("-abliterated",)
"""Ends of names of trained copies that keep the shape."""
REMEMBERED_NAMES = 4096
"""More than the tables have: a file with hundreds of command lines compares each with all."""


class RepackName(NamedTuple):
    """The name of a repack in two parts."""

    base: str
    """Name of the model, without the owner."""
    format: str
    """One of the values of `FORMAT_WORDS`."""


def full_names(name: str, names: Iterable[str]) -> list[str]:
    """Returns the `names` for which a short name can stand.

    Case, the organization and a suffix such as -Instruct may be left out, and spaces are dashes.
    """
    wanted = _folded(name)
    folded_names = {full_name: _folded(full_name) for full_name in names}
    for suffix in CHAT_SUFFIXES:
        matches = [
            full_name
            for full_name, folded in folded_names.items()
            if wanted + suffix in (folded, folded.rpartition("/")[2])
        ]
        if matches:
            return matches
    return []


def copies_of(name: str, names: Iterable[str]) -> list[str]:
    """Returns the `names` with the same last part, whoever their owners are.

    The beginnings Meta- and NVIDIA- are ignored, and -hf and -abliterated at the end. An end such
    as -Instruct may be left out.
    """
    wanted = _core(name)
    cores = {full_name: _core(full_name) for full_name in names}
    for suffix in CHAT_SUFFIXES:
        matches = [full_name for full_name, core in cores.items() if core == wanted + suffix]
        if matches:
            return matches
    return []


def read_repack(name: str) -> RepackName | None:
    """Returns the model and the format in the name of a repack; None for another name."""
    base = name.rpartition("/")[2]
    for suffix in SAME_WEIGHTS:
        base = _without_end(base, suffix)
    formats: list[str] = []
    for _ in range(MAX_WORDS):
        separators = list(_SEPARATOR.finditer(base))
        if not separators:
            break
        word = base[separators[-1].end() :].lower()
        if word in FORMAT_WORDS:
            formats.append(FORMAT_WORDS[word])
        elif word not in WORDS_OF_REPACKS and _GROUP.fullmatch(word) is None:
            break
        base = base[: separators[-1].start()]
    if not formats:
        return None
    return RepackName(base, _format_of(formats[::-1]))


def base_name(name: str) -> str:
    """Returns the last part of a name in lower case, without the end that a repack has."""
    repack = read_repack(name)
    if repack is not None:
        return _folded(repack.base)
    return _folded(name.rpartition("/")[2])


def sizes_of(name: str) -> tuple[str, ...]:
    """Returns the numbers of parameters in a name, such as 30b and a3b."""
    return tuple(_SIZE.findall(_folded(name).rpartition("/")[2]))


def _format_of(words: list[str]) -> str:
    """Returns the format that the words of a name describe, in their order."""
    exact = [word for word in words if word not in VAGUE_FORMATS | EIGHT_BITS]
    if exact and words[0] not in METHODS:
        return exact[0]
    if not EIGHT_BITS.isdisjoint(words):
        return "int8"
    return words[0]


@lru_cache(maxsize=REMEMBERED_NAMES)
def _core(name: str) -> str:
    """Returns the last part of a name without the ends and beginnings that copies change."""
    base = _folded(name).rpartition("/")[2]
    for suffix in SAME_WEIGHTS:
        base = _without_end(base, suffix)
    return _MAKER.sub("", _without_end(base, FILES_SUFFIX))


def _without_end(text: str, end: str) -> str:
    return text[: -len(end)] if text.lower().endswith(end) else text


@lru_cache(maxsize=REMEMBERED_NAMES)
def _folded(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())
