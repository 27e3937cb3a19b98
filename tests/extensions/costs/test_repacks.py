"""Models that only their base is known of, formats without arithmetic, and estimates."""

import pytest

from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.repacks import find_config
from app.extensions.costs.shapes import memory_shape
from app.extensions.costs.text_configs import has_known_cost
from config.declaration import ConfigError
from vllm_facts.known_models import known_models


@pytest.mark.parametrize(
    ("name", "base", "weights"),
    [
        ("Qwen/Qwen3-14B-AWQ", "Qwen/Qwen3-14B", "awq"),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "Qwen/Qwen3-30B-A3B", "awq"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "meta-llama/Llama-3.1-8B", "awq"),
    ],
)
def test_repack_has_the_shape_of_its_base_and_its_own_format(
    name: str, base: str, weights: str
) -> None:
    repack = find_config(name)
    original = find_config(base)
    assert isinstance(repack, dict) and isinstance(original, dict)
    assert repack["hidden_size"] == original["hidden_size"]
    assert repack["quantization_config"]["quant_method"] == weights
    assert "quantization_config" not in original


@pytest.mark.parametrize("method", ["", "awq", "awq_marlin"])
def test_awq_on_a100_reads_a_quarter_of_the_bytes(method: str) -> None:
    small = datasheet_profile(
        find_config("Qwen/Qwen3-14B-AWQ"), "a100", EngineOptions(quantization=method)
    )
    large = datasheet_profile(find_config("Qwen/Qwen3-14B"), "a100", EngineOptions())
    one, many = (dict(profile.cost.products) for profile in (small, large))
    assert 0.3 < one[1] / many[1] < 0.5
    # Unpacking costs arithmetic, so that prompts take longer.
    assert one[2048] > many[2048]


@pytest.mark.parametrize("device", ["rtx3090", "rtx4090", "a100", "l40s", "h100", "b200"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B"])
def test_costs_of_each_format_are_known_on_each_generation(model: str, device: str) -> None:
    profile = datasheet_profile(find_config(model), device, EngineOptions())
    assert profile.checked.startswith("a sum over kernels")
    steps = [seconds for _, seconds in profile.cost.products]
    assert steps == sorted(steps)


def test_fp8_on_ampere_computes_in_16_bits() -> None:
    options = EngineOptions()
    ampere, ada = (
        dict(datasheet_profile(find_config("Qwen/Qwen3-8B-FP8"), device, options).cost.products)
        for device in ("a6000", "rtx6000-ada")
    )
    # Ada has 4.7 times the rate of 8 bits, and 1.25 times the bandwidth.
    assert ampere[4096] > 2.5 * ada[4096]
    assert ampere[1] < 2 * ada[1]


def test_every_known_architecture_can_be_asked() -> None:
    estimates = 0
    names = {memory_shape(config).architectures[0]: name for name, config in known_models().items()}
    for name in names.values():
        config = known_models()[name]
        options = EngineOptions()
        try:
            profile = datasheet_profile(config, "b300", options)
        except ConfigError as error:
            assert "leave no room" in str(error), name
            continue
        is_estimate = "an estimate: the layers of" in profile.checked
        assert is_estimate is not has_known_cost(config), name
        estimates += is_estimate
    assert estimates > 20


def test_unknown_device_says_how_to_measure() -> None:
    with pytest.raises(ConfigError, match="record its answers at two rates, and calibrate"):
        datasheet_profile(find_config("Qwen/Qwen3-8B"), "m3-max", EngineOptions())


def test_weights_with_8_bit_activations_compute_prompts_faster() -> None:
    name = "RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a"
    both, weights_alone = (
        dict(datasheet_profile(find_config(name + bits), "l40s", EngineOptions()).cost.products)
        for bits in ("8", "16")
    )
    assert weights_alone[2048] > 1.5 * both[2048]
    assert both[1] == pytest.approx(weights_alone[1], rel=0.1)


def test_repack_in_a_format_without_known_kernels_is_refused_with_the_way_to_measure() -> None:
    with pytest.raises(ConfigError, match=r"kernels for gguf is unknown; ask for Qwen/Qwen3-14B "):
        find_config("unsloth/Qwen3-14B-GGUF")
