"""A model's config.json has one reader: costs, cache groups and `serve` agree about a file."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.text.files import read_folder
from app.extensions.cache_groups.layers import group_layers
from app.extensions.cache_groups.presets import read_layers
from app.extensions.costs.shapes import cost_shape
from tests.vllm_facts.test_serve import served
from vllm_facts.known_models import config_of
from vllm_facts.model_shape import ModelShape, read_model_config, text_fields

SIZES = {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "intermediate_size": 4096,
}
LAYERS = st.fixed_dictionaries(
    {"num_hidden_layers": st.integers(2, 100), "max_position_embeddings": st.integers(64, 1 << 20)},
    optional={
        "sliding_window": st.sampled_from([None, 128, 1024]),
        "sliding_window_pattern": st.integers(2, 8),
    },
)


def pattern_layers(fields: dict[str, Any]) -> list[str]:
    """Returns what cache groups derived from a pattern before they shared the reader."""
    pattern = fields["sliding_window_pattern"]
    layers = range(1, fields["num_hidden_layers"] + 1)
    return ["sliding_attention" if number % pattern else "full_attention" for number in layers]


def context_length(folder: Path) -> int:
    """Returns the context length of a served model."""
    return served(str(folder)).model.max_model_len


@settings(deadline=None, max_examples=40)
@given(fields=LAYERS, is_nested=st.booleans())
def test_readers_of_a_config_file_agree(fields: dict[str, Any], is_nested: bool) -> None:
    document: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **SIZES, **fields}
    if is_nested:
        document = {"architectures": document.pop("architectures"), "text_config": document}
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(document))
        costs = cost_shape(config_of(name))
        layers = read_layers(str(folder / "config.json"))
        shape = msgspec.convert(text_fields(read_model_config(folder)), ModelShape)
    assert layers == shape, "cache groups read the shape"
    for field in shape.__struct_fields__:
        assert getattr(costs, field) == getattr(shape, field), f"costs disagree about {field}"
    assert shape.max_position_embeddings == fields["max_position_embeddings"], "context length"
    if "sliding_window_pattern" in fields:
        assert shape.layer_kinds == pattern_layers(fields), "layers of the pattern"
        windows = shape.layer_kinds.count("sliding_attention") / len(shape.layer_kinds)
        expected_share = windows if fields.get("sliding_window") else 0
        assert costs.sliding_share == expected_share, "share of layers with a window"


def write(folder: Path, document: object) -> None:
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "tokenizer.json").write_text("{}")


def test_text_config_takes_precedence_in_every_reader(tmp_path: Path) -> None:
    text_config = {**SIZES, "num_hidden_layers": 4, "max_position_embeddings": 96}
    outer = {"vocab_size": 7, "max_position_embeddings": 2048}
    write(
        tmp_path,
        {"architectures": ["LlamaForCausalLM"], **outer, "text_config": text_config},
    )
    assert context_length(tmp_path) == 96, "serve, as vLLM"
    assert cost_shape(config_of(str(tmp_path))).max_position_embeddings == 96, "costs"
    assert read_folder(tmp_path).model_vocab_size == 1000, "tokenizer"


def test_defaults_of_the_family_count_in_every_reader(tmp_path: Path) -> None:
    text_config = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    document = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text_config}
    write(tmp_path, document)
    assert context_length(tmp_path) == 131072, "serve"
    assert read_folder(tmp_path).model_vocab_size == 262208, "tokenizer"
    groups = group_layers(read_layers(str(tmp_path / "config.json")))
    kinds = [group.kind for group in groups]
    assert kinds == ["sliding_window"] * 6 + ["full_attention"], "groups of 5 layers, as in vLLM"


def test_infinity_in_a_config_file_is_read_as_python_reads_it(tmp_path: Path) -> None:
    fields = {**SIZES, "num_hidden_layers": 4, "max_position_embeddings": 96}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields, "time_step_limit": [0.0, float("inf")]}))
    shape = msgspec.convert(text_fields(read_model_config(path)), ModelShape)
    assert shape.max_position_embeddings == 96, "real files of Nemotron-H have such a field"


@pytest.mark.parametrize("content", ["[1]", "3", "null", "{", '{"max_position_embeddings": "x"}'])
def test_serve_ignores_an_odd_config_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert context_length(tmp_path) == 32768, "the usual context length"
