"""One row a model: `serve`, `check`, and the sizes of costs agree about it."""

import pytest

from app.core.settings import settings_type
from app.extensions.costs.fit import shape_of
from app.extensions.costs.shapes import memory_shape
from scripts.model_table import BASE_FIELDS, RECIPE_LENGTH, file_row, with_config
from vllm_facts import models
from vllm_facts.known_models import config_of, known_models
from vllm_facts.model_choice import choose_model
from vllm_facts.model_flaws import model_flaws
from vllm_facts.models import Recipe, Row, facts_of, find_model, read_rows
from vllm_facts.serve import settings_of
from vllm_facts.version import NEWEST

ROWS = read_rows()
KNOWN = known_models()
PARTS = ("D403", "memory", "simulate")
FAR_LENGTH = 1 << 30
"""More tokens than any model reads."""


@pytest.fixture(autouse=True)
def rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of names are looked up here, and each lookup reads the file."""
    monkeypatch.setattr(models, "read_rows", lambda: ROWS)


def lengths_of(name: str) -> dict[str, int]:
    """Returns the longest request of a model, by the part of the program that states it."""
    choice = choose_model(name, None, skips_check=True)
    lengths = {}
    flaws = list(model_flaws({"max-model-len": str(FAR_LENGTH)}, choice, (), NEWEST))
    for flaw in flaws:
        if flaw.kind == "length":
            lengths["D403"] = int(flaw.fix.removeprefix("use --max-model-len ").partition(",")[0])
    shape = shape_of(choice, "")
    if shape is not None:
        lengths["memory"] = shape.max_position_embeddings
    if name in KNOWN:
        lengths["simulate"] = memory_shape(config_of(name)).max_position_embeddings
    return lengths


def test_known_models_have_one_length_in_d403_memory_verdicts_and_simulate() -> None:
    differences = {}
    for name in ROWS:
        lengths = lengths_of(name)
        is_incomplete = name in KNOWN and len(lengths) < len(PARTS)
        if is_incomplete or len(set(lengths.values())) > 1:
            differences[name] = lengths
    assert differences == {}


def test_serve_starts_each_known_model_with_its_length() -> None:
    differences = {}
    for name in KNOWN:
        length = settings_of([name], {}, settings_type()).fallbacks["max-model-len"]
        expected = memory_shape(config_of(name)).max_position_embeddings
        if length != str(expected):
            differences[name] = length, expected
    assert differences == {}


def test_no_row_repeats_what_its_config_file_says() -> None:
    assert len(KNOWN) >= 400
    for name, config in KNOWN.items():
        facts = facts_of(config)
        for field in (*BASE_FIELDS, "format"):
            value = getattr(ROWS[name], field)
            assert not value or value != getattr(facts, field), (name, field)


def test_length_of_a_recipe_is_kept_apart_from_the_one_of_the_config_file() -> None:
    row = ROWS["google/gemma-4-26B-A4B-it"]
    assert row.recipe.max_model_len == 131_072
    assert row.facts().max_model_len == 262_144
    for name, row in ROWS.items():
        length = row.recipe.max_model_len
        assert not length or length != (row.max_model_len or row.config_facts().max_model_len), name


def test_lengths_are_those_of_the_config_file() -> None:
    lengths = {
        "google/gemma-4-26B-A4B-it": 262_144,
        "RedHatAI/gemma-4-26B-A4B-it-FP8-dynamic": 262_144,
        "LiquidAI/LFM2.5-1.2B-Instruct": 128_000,
        "mistralai/Mistral-Small-4-119B-2603": 1_048_576,
        "Qwen/Qwen2.5-32B": 131_072,
        "stepfun-ai/Step-3.7-Flash": 262_144,
        "intfloat/e5-mistral-7b-instruct": 4_096,
    }
    for name, length in lengths.items():
        found = find_model(name)
        assert found is not None
        assert found[1].max_model_len == length, name


def test_length_of_a_recipe_is_that_of_a_model_without_a_config_file() -> None:
    row = Row(recipe=Recipe(max_model_len=100))
    assert row.facts().max_model_len == 100
    assert file_row({RECIPE_LENGTH: 100, "source": "a"}) == {
        "recipe": {"max_model_len": 100},
        "source": "a",
    }


def test_a_row_takes_length_and_architecture_from_the_config_file_and_the_format_of_a_recipe() -> (
    None
):
    recipe = {
        "architecture": "Wrong",
        "max_model_len": 10,
        "format": "int4",
        "tool_parser": "hermes",
        "source": "vllm-project/recipes",
        RECIPE_LENGTH: 10,
    }
    config = {
        "architectures": ["Right"],
        "max_position_embeddings": 20,
        "quantization_config": {"quant_method": "awq"},
    }
    assert file_row(with_config(recipe, config, "the shape of another")) == {
        "config": config,
        "format": "int4",
        "recipe": {"tool_parser": "hermes", "max_model_len": 10},
        "source": "the shape of another",
    }
