"""Models by name: what vLLM would read from their files. `python -m scripts.model_table` writes it.

Start reading at `find_model`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from config.declaration import UsageError

FILE = Path(__file__).with_name("models.json")
PoolingTask = Literal["", "embed", "score", "classify", "token_classify"]
CHAT_SUFFIXES = ("", "-instruct", "-it", "-chat")
"""Ends of names that a short name may leave out."""
_REPACK = re.compile(
    r"[-_.](?:(?P<format>awq|gptq|fp8|nvfp4|mxfp4|mxfp8|fp4|int4|int8|gguf|bnb|w8a8|w4a16|w8a16|w4a8"
    r"|quantized)(?:[-_.](?:int\d|\d+bit|dynamic|static|block|pertensor|w\da\d+|marlin|g\d+|kv|8bit"
    r"|4bit|quant))*)+$",
    re.IGNORECASE,
)
"""End of the name of a repack, such as -AWQ, -GPTQ-Int4, -FP8-dynamic and -quantized.w4a16."""


class Model(Struct, frozen=True, omit_defaults=True):
    """Facts of a model; empty where the sources have none."""

    architecture: str = ""
    max_model_len: int = 0
    """Tokens."""
    task: PoolingTask = ""
    """Empty for a generating model."""
    size: int = 0
    """Numbers of a vector, or classes."""
    base: str = ""
    """Original model of a repack."""
    format: str = ""
    """Format of the weights of a repack."""
    tool_parser: str = ""
    """`--tool-call-parser` of vLLM's recipe."""
    reasoning_parser: str = ""
    shape: dict[str, object] = {}
    """Fields of the config.json."""
    source: str = ""


def read_models() -> dict[str, Model]:
    """Returns the table, by the names of the Hugging Face hub."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Model])


def find_model(name: str) -> tuple[str, Model] | None:
    """Returns the full name and the facts of a model; None for an unknown name.

    Case, the organization and a suffix such as -Instruct may be left out. A repack that is not in
    the table has the facts of its base.

    Raises:
        UsageError: A short name stands for several models.
    """
    models = read_models()
    if name in models:
        return name, models[name]
    matches = full_names(name, models)
    if len(matches) == 1:
        return matches[0], models[matches[0]]
    if len(matches) > 1:
        raise UsageError(f"model {name!r} could be {' or '.join(matches)}")
    repack = _REPACK.search(name)
    if repack is None:
        return None
    base_name = name[: repack.start()]
    bases = full_names(base_name, models) or full_names(base_name.rpartition("/")[2], models)
    if len(bases) != 1:
        return None
    facts = msgspec.structs.replace(
        models[bases[0]], base=bases[0], format=repack["format"].lower()
    )
    return name, facts


def base_name(name: str) -> str:
    """Returns the last part of a name in lower case, without the end that a repack has."""
    return _folded(_REPACK.sub("", name.rpartition("/")[2]))


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


def _folded(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())
