"""Models by name: a row for each, with facts of its config.json and of vLLM's recipe.

`python -m scripts.model_table` writes the file; `config` is the part that it keeps. Start reading
at `find_model`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from config.declaration import UsageError
from vllm_facts.model_names import copies_of, full_names, read_repack
from vllm_facts.speech_names import speech_family

FILE = Path(__file__).with_name("models.json")
PoolingTask = Literal["", "embed", "score", "classify", "token_classify"]
SHAPE_FIELDS: Final = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "moe_intermediate_size", "num_experts", "vocab_size"),
)
"""Fields of a config.json that all sources have."""


class Recipe(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Facts of vLLM's recipe of a model."""

    max_model_len: int = 0
    """Tokens, where a config.json has another length or none."""
    tool_parser: str = ""
    """`--tool-call-parser`."""
    reasoning_parser: str = ""


class ConfigFacts(Struct, frozen=True, omit_defaults=True):
    """Facts of a config.json that `serve` and `check` use."""

    architecture: str = ""
    max_model_len: int = 0
    """Tokens."""
    shape: dict[str, object] = {}
    """Its `SHAPE_FIELDS`."""
    format: str = ""
    """Format of the weights."""


class Row(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A row of the file: the facts of a model, by source."""

    config: Raw = Raw()
    """Fields of the config.json that decide costs and memory, a JSON object; empty if unknown."""
    recipe: Recipe = Recipe()
    architecture: str = ""
    """Of vLLM's tests or a base, where `config` is empty; also `max_model_len` and `shape`."""
    max_model_len: int = 0
    """Tokens. Of a model card, it takes precedence over the config.json."""
    shape: dict[str, object] = {}
    format: str = ""
    """Format of the weights of a repack; takes precedence over the config.json."""
    base: str = ""
    """Original model of a repack."""
    task: PoolingTask = ""
    size: int = 0
    media: dict[str, object] = {}
    """Rules for the tokens of media, where they are not those of the architecture."""
    source: str = ""
    """Source of the facts besides the recipe."""

    def read_config(self) -> dict[str, object]:
        """Returns the fields of the config.json; empty if they are unknown."""
        content = bytes(self.config)
        if not content:
            return {}
        return msgspec.json.decode(content, type=dict[str, object])

    def config_facts(self) -> ConfigFacts:
        """Returns the facts of the config.json; empty if it is unknown."""
        config = self.read_config()
        if not config:
            return ConfigFacts()
        return facts_of(config)

    def facts(self) -> "Model":
        """Returns the facts of the model."""
        config = self.config_facts()
        return Model(
            architecture=self.architecture or config.architecture,
            max_model_len=self.max_model_len or config.max_model_len or self.recipe.max_model_len,
            task=self.task,
            size=self.size,
            base=self.base,
            format=self.format or config.format,
            tool_parser=self.recipe.tool_parser,
            reasoning_parser=self.recipe.reasoning_parser,
            media=self.media,
            shape=self.shape or config.shape,
            source=self.source,
        )


class Model(Struct, frozen=True, omit_defaults=True):
    """Facts of a model, of all sources together; empty where the sources have none."""

    architecture: str = ""
    max_model_len: int = 0
    """Tokens of the longest request that vLLM accepts."""
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
    media: dict[str, object] = {}
    """Rules for the tokens of media, where they are not those of the architecture."""
    shape: dict[str, object] = {}
    """Fields of the config.json."""
    source: str = ""


def facts_of(config: Mapping[str, object]) -> ConfigFacts:
    """Returns architecture, shape, maximum length and format of a config.json."""
    from vllm_facts.model_shape import architecture_of, text_fields  # takes a millisecond

    fields = text_fields(config)
    length = fields.get("max_position_embeddings")
    if not isinstance(length, int):
        length = 0
    quantization = fields.get("quantization_config")
    method: object = None
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
    return ConfigFacts(
        architecture=architecture_of(fields),
        max_model_len=length,
        shape={name: fields[name] for name in SHAPE_FIELDS if name in fields},
        format=str(method or ""),
    )


def read_rows() -> dict[str, Row]:
    """Returns the rows of the file, by the names of the Hugging Face hub."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Row])


def find_model(name: str) -> tuple[str, Model] | None:
    """Returns the full name and the facts of a model; None for an unknown name.

    Case, the organization and a suffix such as -Instruct may be left out. A copy or a repack that
    is not in the table has the facts of its original, and a speech model those of its family.

    Raises:
        UsageError: A short name stands for several models.
    """
    rows = read_rows()
    if name in rows:
        return name, rows[name].facts()
    matches = full_names(name, rows)
    if len(matches) == 1:
        return matches[0], rows[matches[0]].facts()
    if len(matches) > 1:
        raise UsageError(f"model {name!r} could be {' or '.join(matches)}")
    if name.count("/") > 1:  # an address
        return None
    return _repack(name, rows) or _copy(name, rows) or _speech_model(name)


def _speech_model(name: str) -> tuple[str, Model] | None:
    """Returns the facts of the family in the name of a speech model."""
    family = speech_family(name)
    if family is None:
        return None
    facts = Model(
        architecture=family.architecture,
        max_model_len=family.max_model_len,
        source="the family of its name",
    )
    return name, facts


def _copy(name: str, rows: Mapping[str, Row]) -> tuple[str, Model] | None:
    """Returns the facts of a model that another owner published under the same name."""
    original = _one_shape(copies_of(name, rows), rows)
    if not original:
        return None
    return name, replace(rows[original].facts(), copy_of=original)


def _repack(name: str, rows: Mapping[str, Row]) -> tuple[str, Model] | None:
    """Returns the facts of the model in the name of a repack, and its format."""
    repack = read_repack(name)
    if repack is None:
        return None
    names = [each for each, row in rows.items() if not row.base]
    base = _one_shape(copies_of(repack.base, names), rows)
    if not base:
        return None
    return name, replace(rows[base].facts(), base=base, format=repack.format)


def _one_shape(names: Sequence[str], rows: Mapping[str, Row]) -> str:
    """Returns the first of the models with a shape; empty if their shapes differ."""
    first = ""
    first_shape: dict[str, object] = {}
    for name in names:
        shape = rows[name].facts().shape
        if not first or (shape and not first_shape):
            first = name
            first_shape = shape
        elif shape and shape != first_shape:
            return ""
    return first
