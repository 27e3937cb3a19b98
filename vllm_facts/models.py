"""Models by name: what vLLM would read from their files. `python -m scripts.model_table` writes it.

Start reading at `find_model`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from config.declaration import UsageError
from vllm_facts.model_names import copies_of, full_names, read_repack

FILE = Path(__file__).with_name("models.json")
PoolingTask = Literal["", "embed", "score", "classify", "token_classify"]


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
    copy_of: str = ""
    """Model of the table whose files a copy by another owner has."""
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

    Case, the organization and a suffix such as -Instruct may be left out. A copy or a repack that
    is not in the table has the facts of its original.

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
    if name.count("/") > 1:  # an address
        return None
    return _repack(name, models) or _copy(name, models)


def _copy(name: str, models: Mapping[str, Model]) -> tuple[str, Model] | None:
    """Returns the facts of a model that another owner published under the same name."""
    original = _one_shape(copies_of(name, models), models)
    if not original:
        return None
    return name, replace(models[original], copy_of=original)


def _repack(name: str, models: Mapping[str, Model]) -> tuple[str, Model] | None:
    """Returns the facts of the model in the name of a repack, and its format."""
    repack = read_repack(name)
    if repack is None:
        return None
    names = [each for each, model in models.items() if not model.base]
    base = _one_shape(copies_of(repack.base, names), models)
    if not base:
        return None
    return name, replace(models[base], base=base, format=repack.format)


def _one_shape(names: Sequence[str], models: Mapping[str, Model]) -> str:
    """Returns the first of the models with a shape; empty if their shapes differ."""
    first = ""
    for name in names:
        if not first or (models[name].shape and not models[first].shape):
            first = name
        elif models[name].shape and models[name].shape != models[first].shape:
            return ""
    return first
