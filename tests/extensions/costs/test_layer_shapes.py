"""Text parts of models, latent attention, and layers with a state: sizes, memory and costs."""

import pytest
from msgspec.structs import replace

from app.core.engine.batch import Batch, SequenceState
from app.core.engine.profile import CostConstants, Profile
from app.core.engine.step_cost import StepCost
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.memory import state_bytes, token_bytes
from app.extensions.costs.repacks import find_config
from app.extensions.costs.shapes import cost_shape
from app.extensions.costs.storage_formats import read_storage
from tests.extensions.costs.test_datasheet import QWEN

GIB = 1 << 30


def profile_of_name(name: str, device: str, devices: int, **options: str) -> Profile:
    engine = EngineOptions(tensor_parallel_size=devices, **options)
    return datasheet_profile(find_config(name), device, engine)


def decode_s(cost: CostConstants, decodes: int, context: int) -> float:
    batch: Batch[SequenceState] = Batch()
    batch.tokens = batch.sequences = decodes
    batch.context = decodes * context
    return StepCost(cost).seconds(batch, 0.0, idle=False)


def prefill_s(cost: CostConstants, tokens: int) -> float:
    batch: Batch[SequenceState] = Batch()
    batch.tokens = tokens
    batch.sequences = 1
    batch.prefills = 1
    batch.attention = tokens * tokens / 2
    return StepCost(cost).seconds(batch, 0.0, idle=False)


def test_text_part_of_a_multimodal_model_costs_the_same_as_the_text_model() -> None:
    nested = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": {**QWEN, "architectures": None},
        "vision_config": {"depth": 32},
    }
    plain = {**QWEN, "architectures": ["MistralForCausalLM"]}
    with_encoder = datasheet_profile(nested, "h100")
    alone = datasheet_profile(plain, "h100")
    assert 0 < with_encoder.cost.per_embedding < 1e-3
    assert alone.cost == replace(
        with_encoder.cost, encoder=0, per_embedding=0, per_embedding_pair=0
    )
    assert with_encoder.engine == alone.engine
    assert "no server with images was compared" in with_encoder.checked
    assert "encoder" not in alone.checked


def test_omitted_config_fields_have_the_defaults_of_the_model_family() -> None:
    gemma = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560,
            "num_hidden_layers": 34,
            "intermediate_size": 10240,
            "sliding_window": 1024,
        },
    }
    shape = cost_shape(gemma)
    assert (shape.vocab_size, shape.head_dim, shape.tie_word_embeddings) == (262208, 256, True)
    assert shape.window == 1024
    assert shape.sliding_share == pytest.approx(29 / 34), "layers 6, 12, 18, 24 and 30 see all"


def test_dense_layers_of_llama_4_are_wider_than_its_experts() -> None:
    shape = cost_shape(find_config("meta-llama/Llama-4-Maverick-17B-128E-Instruct"))
    assert (shape.sparse_layers, shape.dense_layers) == (24, 24)
    assert (shape.intermediate_size, shape.moe_intermediate_size) == (16384, 8192)
    assert shape.shared_expert_intermediate_size == 8192
    assert shape.sliding_share == 0.75


@pytest.mark.parametrize(
    ("name", "latent_bytes"),
    [
        ("deepseek-ai/DeepSeek-R1", 61 * 576 * 2),
        ("moonshotai/Kimi-K2.5", 61 * 576 * 2),
        ("nvidia/Kimi-K2.5-NVFP4", 61 * 576),  # the checkpoint declares fp8 keys
        ("deepseek-ai/DeepSeek-V3.2", 61 * (576 * 2 + 132)),  # with the index of each token
    ],
)
def test_every_device_stores_the_full_latent_vector_of_a_token(
    name: str, latent_bytes: int
) -> None:
    config = find_config(name)
    shape = cost_shape(config)
    number_bytes = latent_bytes // 61 // 576
    assert token_bytes(shape, 1, number_bytes) == token_bytes(shape, 8, number_bytes)
    assert token_bytes(shape, 8, number_bytes) == latent_bytes
    profile = datasheet_profile(config, "b300", EngineOptions(tensor_parallel_size=8))
    assert profile.kv_bytes_per_token == 8 * latent_bytes


def test_sparse_attention_token_in_fp8_has_scales_and_16_bit_rope_values() -> None:
    shape = cost_shape(find_config("deepseek-ai/DeepSeek-V3.2"))
    assert token_bytes(shape, 8, 1) == 61 * (656 + 132)


def test_decode_with_latent_attention_reads_one_vector_for_all_heads() -> None:
    cost = profile_of_name("deepseek-ai/DeepSeek-R1", "h200", 8).cost
    read_s = 61 * 576 * 2 / 4.8e12
    assert read_s < cost.per_context < 1.2 * read_s  # sixteen heads hardly compute
    alone = profile_of_name("deepseek-ai/DeepSeek-R1", "b300", 4).cost
    assert alone.per_context > 61 * 576 * 2 / 7.75e12


def test_sparse_attention_reduces_the_cost_of_a_long_context() -> None:
    full, sparse = (
        profile_of_name(f"deepseek-ai/DeepSeek-{kind}", "b300", 8).cost for kind in ("V3.1", "V3.2")
    )
    grown = [decode_s(cost, 16, 100_000) - decode_s(cost, 16, 2048) for cost in (full, sparse)]
    assert 0 < grown[1] < grown[0] / 3
    assert prefill_s(sparse, 8192) > prefill_s(sparse, 4096)


def test_linear_attention_state_has_a_fixed_size_per_sequence() -> None:
    shape = cost_shape(find_config("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert (shape.attention_layers, shape.recurrent_layers) == (12, 36)
    state = 32 * 128 * 128 * 2 + (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert state_bytes(shape, 4) == 36 * state / 4
    assert token_bytes(shape, 2, 2) == 12 * 2 * 256 * 2
    cost = profile_of_name("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100", 4).cost
    assert cost.per_decode > 2 * 36 * state / 4 / 3.35e12


def test_higher_max_num_seqs_leaves_fewer_kv_blocks_with_linear_attention() -> None:
    config = find_config("Qwen/Qwen3-Next-80B-A3B-Instruct")
    options = EngineOptions(tensor_parallel_size=4)
    few, many = (
        datasheet_profile(config, "h100", options, limits={"max_num_seqs": count}).engine
        for count in (64, 512)
    )
    assert many.num_gpu_blocks < few.num_gpu_blocks


def test_each_nemotron_layer_is_either_attention_mamba_or_moe() -> None:
    shape = cost_shape(find_config("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"))
    assert (shape.attention_layers, shape.recurrent_layers, shape.sparse_layers) == (6, 23, 23)
    assert (shape.dense_layers, shape.layers) == (0, 26)


def test_newer_nemotron_config_files_list_the_layers_by_name() -> None:
    config = dict(find_config("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"))  # type: ignore[call-overload]
    pattern = config.pop("hybrid_override_pattern")
    names = {"M": "mamba", "E": "moe", "*": "attention"}
    listed = {**config, "layers_block_type": [names[layer] for layer in pattern]}
    assert cost_shape(listed).hybrid_override_pattern == pattern


@pytest.mark.parametrize(
    ("name", "attention", "networks", "experts"),
    [
        ("moonshotai/Kimi-K2.5", "bf16", "bf16", "int4"),
        ("nvidia/Kimi-K2.5-NVFP4", "bf16", "nvfp4", "nvfp4"),
        ("deepseek-ai/DeepSeek-R1", "fp8-block", "fp8-block", "fp8-block"),
        ("openai/gpt-oss-120b", "bf16", "bf16", "mxfp4"),
    ],
)
def test_number_format_of_each_layer_kind_is_read_from_the_config(
    name: str, attention: str, networks: str, experts: str
) -> None:
    shape = cost_shape(find_config(name))
    storage = read_storage(shape.quantization_config, name)
    assert (storage.attention_kernels, storage.network_kernels) == (attention, networks)
    assert storage.kernels == experts


def test_model_with_an_excluded_layer_still_counts_as_quantized() -> None:
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]}
    shape = cost_shape({**QWEN, "quantization_config": quantization})
    assert read_storage(shape.quantization_config, "").attention_kernels == "fp8"


def test_computed_weight_sizes_match_published_checkpoints() -> None:
    for name, gigabytes in (
        ("moonshotai/Kimi-K2.5", 595),
        ("deepseek-ai/DeepSeek-R1", 673),
        ("nvidia/Kimi-K2.5-NVFP4", 590),
    ):
        assert profile_of_name(name, "b300", 8).weight_bytes / 1e9 == pytest.approx(
            gigabytes, rel=0.02
        )


@pytest.mark.parametrize(
    ("name", "device", "rule"),
    [
        ("nvidia/Kimi-K2.5-NVFP4", "b300", "on B200 5 and 24 %"),
        ("nvidia/Kimi-K2.5-NVFP4", "gb200", "none on GB200 was compared"),
        ("deepseek-ai/DeepSeek-V3.2", "h200", "with latent attention in fp8-block was compared"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100", "no model with a state in its layers"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "a100", "shares of the data sheet"),
        ("Qwen/Qwen3-8B", "l4", "with L40S's shares of the data sheet; dense bf16"),
        ("Qwen/Qwen3-8B", "mi355x", "shares of the data sheet, without constants of kernels"),
    ],
)
def test_profile_states_the_source_of_its_constants(name: str, device: str, rule: str) -> None:
    assert rule in profile_of_name(name, device, 8).checked


@pytest.mark.parametrize("name", ["nvidia/Kimi-K2.5-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4"])
@pytest.mark.parametrize("device", ["b200", "b300", "gb200", "gb300"])
def test_step_time_grows_with_prompt_length_decodes_and_context_length(
    name: str, device: str
) -> None:
    cost = profile_of_name(name, device, 8).cost
    assert prefill_s(cost, 512) < prefill_s(cost, 2048) < prefill_s(cost, 8192)
    assert decode_s(cost, 1, 1000) < decode_s(cost, 32, 1000) < decode_s(cost, 32, 10_000)
