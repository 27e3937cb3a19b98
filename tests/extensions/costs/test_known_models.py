"""The table of shapes of common models, and its names."""

from pathlib import Path

import pytest

from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.shapes import cost_shape, memory_shape
from app.extensions.costs.text_configs import has_known_cost
from config import ConfigError
from vllm_facts.known_models import config_of, known_models

PARAMETERS = {
    "meta-llama/Llama-2-7b-hf": 6.74,
    "meta-llama/Llama-2-13b-hf": 13.02,
    "meta-llama/Llama-2-70b-hf": 68.98,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    "meta-llama/Llama-3.1-405B-Instruct": 405.85,
    "meta-llama/Llama-3.2-1B-Instruct": 1.236,
    "meta-llama/Llama-3.2-3B-Instruct": 3.213,
    "meta-llama/Llama-3.3-70B-Instruct": 70.55,
    "codellama/CodeLlama-34b-Instruct-hf": 33.74,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.544,
    "Qwen/Qwen2.5-3B-Instruct": 3.086,
    "Qwen/Qwen2.5-7B-Instruct": 7.616,
    "Qwen/Qwen2.5-14B-Instruct": 14.77,
    "Qwen/Qwen2.5-32B-Instruct": 32.76,
    "Qwen/Qwen2.5-72B-Instruct": 72.71,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.72,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-32B": 32.76,
    "Qwen/Qwen3-30B-A3B": 30.53,
    "Qwen/Qwen3-235B-A22B": 235.09,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480.15,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.248,
    "mistralai/Mistral-Nemo-Instruct-2407": 12.25,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23.57,
    "mistralai/Mistral-Large-Instruct-2407": 122.6,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.70,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140.6,
    "openai/gpt-oss-20b": 20.9,
    "openai/gpt-oss-120b": 116.8,
    "MiniMaxAI/MiniMax-M2": 228.7,
    "microsoft/phi-4": 14.66,
    "google/gemma-2-9b-it": 9.24,
    "google/gemma-2-27b-it": 27.23,
    "allenai/OLMo-2-1124-7B-Instruct": 7.30,
    "allenai/OLMo-2-1124-13B-Instruct": 13.72,
    "ibm-granite/granite-3.3-8b-instruct": 8.17,
    "HuggingFaceTB/SmolLM3-3B": 3.08,
    "deepseek-ai/DeepSeek-R1": 671.0,
    "deepseek-ai/DeepSeek-V3.2": 671.9,
    "moonshotai/Kimi-K2.5": 1026.4,
    "zai-org/GLM-4.5-Air": 106.9,
    "zai-org/GLM-4.6": 352.8,
    "zai-org/GLM-5": 743.9,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79.7,
    "Qwen/Qwen3.5-35B-A3B": 34.7,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 107.8,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 400.7,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": 23.57,
    "google/gemma-3-4b-it": 3.88,
    "google/gemma-3-12b-it": 11.77,
    "google/gemma-3-27b-it": 27.01,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "nvidia/Nemotron-H-56B-Base-8K": 56.0,
}
"""Parameters in billions without encoders and drafts, a table of tied embeddings counted once.

They are published, except where a publisher counts encoders or drafts, too.
"""


@pytest.mark.parametrize("name", PARAMETERS)
def test_model_shapes_have_the_published_number_of_parameters(name: str) -> None:
    shape = cost_shape(config_of(name))
    shared, expert = shape.weights()
    parameters = shape.table_weights + shared + shape.num_experts * expert
    assert parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


COSTED = [name for name, config in known_models().items() if has_known_cost(config)]


@pytest.mark.parametrize("name", known_models())
def test_published_parameters_are_about_those_of_the_shape(name: str) -> None:
    shape = memory_shape(config_of(name))
    parts = ("vision", "audio", "-VL", "OCR", "ASR", "multimodal", "gemma-4-E", "opt-", "jina")
    if shape.parameters and not any(part in name for part in parts):
        computed = shape.computed_parameters / 1e9
        assert computed == pytest.approx(shape.parameters, rel=0.06, abs=1)


@pytest.mark.parametrize("name", COSTED)
def test_every_known_model_has_a_computed_profile(name: str) -> None:
    config = config_of(name)
    heads = cost_shape(config).num_attention_heads
    devices = next(count for count in (32, 16, 8, 4, 2, 1) if heads % count == 0)
    options = EngineOptions(tensor_parallel_size=devices)
    assert datasheet_profile(config, "b300", options).engine.num_gpu_blocks > 1000


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "qwen/qwen3-32b", "Qwen3-32B"])
def test_known_model_name_ignores_case_and_may_omit_the_organization(name: str) -> None:
    assert config_of(name) == known_models()["Qwen/Qwen3-32B"]


def test_config_file_takes_precedence_over_a_known_model_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen" / "Qwen3-32B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    assert config_of("Qwen/Qwen3-32B") == {"a": 1}


def test_error_for_an_unknown_model_name_suggests_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as refusal:
        config_of("Qwen/Qwen3-33B")
    text = str(refusal.value)
    assert text.startswith("model Qwen/Qwen3-33B: unknown model; did you mean Qwen/Qwen3-")
    assert "give the path of its config.json" in text
    assert "\n" not in text
