"""The two tables of models: `serve` and `check` read one, the sizes of costs come from the other."""

from scripts.model_table import BASE_FIELDS, facts_of, merged
from vllm_facts.known_models import known_models
from vllm_facts.model_choice import choose_model
from vllm_facts.models import find_model, read_models
from workbench.check.fit import shape_of

MODELS = read_models()
KNOWN = known_models()


def test_the_tables_have_models_in_common() -> None:
    assert len(MODELS.keys() & KNOWN.keys()) >= 400


def test_both_tables_have_the_same_facts_of_each_model() -> None:
    differences = {}
    for name in MODELS.keys() & KNOWN.keys():
        row = {field: getattr(MODELS[name], field) for field in BASE_FIELDS}
        facts = facts_of(KNOWN[name])
        expected = {field: facts.get(field, type(row[field])()) for field in BASE_FIELDS}
        if row != expected:
            differences[name] = row, expected
    assert differences == {}


def test_the_longest_request_is_the_same_in_the_memory_estimate_and_in_check() -> None:
    differences = {}
    for name in MODELS.keys() | KNOWN.keys():
        choice = choose_model(name, None, skips_check=True)
        shape = shape_of(choice, "")
        length = choice.facts.max_model_len
        if shape is not None and length and shape.max_position_embeddings != length:
            differences[name] = shape.max_position_embeddings, length
    assert differences == {}


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


def test_a_row_takes_length_and_architecture_from_the_config_file_and_the_format_of_a_recipe() -> (
    None
):
    recipe = {
        "architecture": "Wrong",
        "max_model_len": 10,
        "format": "int4",
        "tool_parser": "hermes",
        "source": "vllm-project/recipes",
    }
    facts = {"architecture": "Right", "max_model_len": 20, "format": "awq"}
    assert merged(recipe, facts, "the shape of another") == {
        "architecture": "Right",
        "max_model_len": 20,
        "format": "int4",
        "tool_parser": "hermes",
        "source": "the shape of another",
    }
