"""Names of copies and repacks: they lead to their original, and never to another model."""

import pytest

from vllm_facts.model_names import RepackName, base_name, read_repack, sizes_of
from vllm_facts.models import find_model, read_rows

WEIGHT_SUFFIXES = ("-FP8", "-AWQ", "-quantized.w4a16", "-GPTQ-Int8", "-BF16", "-NVFP4A16")


@pytest.mark.parametrize(
    ("name", "base", "weights"),
    [
        ("a/Qwen3-8B-AWQ", "Qwen3-8B", "awq"),
        ("a/Qwen3-8B-AWQ-INT4", "Qwen3-8B", "awq"),
        ("a/Qwen3-8B-AWQ-8bit", "Qwen3-8B", "int8"),
        ("a/Qwen3-8B-GPTQ-Int8", "Qwen3-8B", "int8"),
        ("a/Qwen3-8B-quantized.w8a8", "Qwen3-8B", "int8"),
        ("a/Qwen3-8B-quantized.w4a16", "Qwen3-8B", "w4a16"),
        ("a/Qwen3-8B-W8A8-FP8-dynamic", "Qwen3-8B", "fp8"),
        ("a/Qwen3-8B-FP8-W8A8", "Qwen3-8B", "fp8"),
        ("a/Qwen3-8B-unsloth-bnb-4bit", "Qwen3-8B", "bnb"),
        ("a/Llama-3.1-70B-Instruct-FP8-KV", "Llama-3.1-70B-Instruct", "fp8"),
        ("a/Qwen3.6-27B-int4-AutoRound", "Qwen3.6-27B", "int4"),
        ("a/Yi-34B-GPTQ-4bit-128g-actorder_True", "Yi-34B", "gptq"),
        ("a/Qwen3-8B-abliterated-AWQ", "Qwen3-8B-abliterated", "awq"),
        ("AWQ", "", ""),
        ("a/Qwen3-8B", "", ""),
        ("a/fp8-Qwen3-8B", "", ""),
        ("a/Qwen3-8B-dynamic", "", ""),
        ("a/" + "-fp8" * 10_000, "-fp8" * 9_992, "fp8"),
    ],
)
def test_words_at_the_end_are_the_format_of_a_repack(name: str, base: str, weights: str) -> None:
    expected = RepackName(base, weights) if weights else None
    assert read_repack(name) == expected


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("NousResearch/Meta-Llama-3.1-405B-Instruct", "meta-llama/Llama-3.1-405B-Instruct"),
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("unsloth/gemma-3-27b-it", "google/gemma-3-27b-it"),
        ("huihui-ai/Qwen2.5-72B-Instruct-abliterated", "Qwen/Qwen2.5-72B-Instruct"),
    ],
)
def test_copy_of_another_owner_has_the_facts_of_its_original(name: str, original: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found[0] == name
    assert found[1].copy_of == original
    assert found[1].shape == read_rows()[original].facts().shape


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B-Instruct"),
        ("hugging-quants/Meta-Llama-3.1-8B-AWQ-INT4", "meta-llama/Llama-3.1-8B"),
        ("casperhansen/mixtral-8x7b-instruct-v0.1-awq", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("TheBloke/Llama-2-13B-chat-GPTQ", "meta-llama/Llama-2-13b-chat-hf"),
        ("google/gemma-7b-AWQ", "google/gemma-7b"),
        ("unsloth/gpt-oss-20b-BF16", "openai/gpt-oss-20b"),
    ],
)
def test_repack_of_another_owner_has_the_facts_of_its_base(name: str, base: str) -> None:
    found = find_model(name)
    assert (found[1].base if found is not None else "") == base


@pytest.mark.parametrize(
    "name",
    [
        "a/Qwen3-80B",
        "a/Qwen3-8B-VL",
        "a/Qwen3-VL-8B-Omni-FP8",
        "a/Llama-3.1-9B-Instruct-FP8",
        "a/Llama-3.1-8B-Instruct-1M",
        "a/Qwen3-8B-speculator.eagle3",
        "a/Qwen3-8B-DFlash",
        "a/Qwen3-8B-lora",
        "a/EAGLE-LLaMA3.1-Instruct-8B",
        "a/tiny-random-Qwen3-8B",
        "a/8B",
        "a/coder-6.7b-instruct",
        "a/Meta",
        "a/-FP8",
        "",
        "/",
        "-AWQ",
    ],
)
def test_other_names_are_not_taken_for_a_known_model(name: str) -> None:
    found = find_model(name)
    assert found is None or not (found[1].copy_of or found[1].base)


def test_copies_and_repacks_have_the_shape_of_the_model_with_their_name() -> None:
    models = read_rows()
    # Every 29th model, with each suffix: a search through the table takes milliseconds.
    for name in sorted(models)[::29]:
        last_part = name.rpartition("/")[2]
        for suffix in ("", *WEIGHT_SUFFIXES):
            copied = f"another-owner/{last_part}{suffix}"
            found = find_model(copied)
            if found is None:  # two models of different shapes have this name
                continue
            original = found[1].copy_of or found[1].base or found[0]
            assert sizes_of(original) == sizes_of(name), copied
            shape = models[name].facts().shape
            original_shape = models[original].facts().shape
            if shape and original_shape:
                assert original_shape == shape, copied


def test_shapes_are_not_copied_between_models_of_other_sizes() -> None:
    for name, model in read_rows().items():
        if model.base:
            assert sizes_of(name) == sizes_of(model.base), name


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Qwen/Qwen3-30B-A3B", ("30b", "a3b")),
        ("meta-llama/Llama-3.1-8B-Instruct", ("8b",)),
        ("google/gemma-4-E2B-it", ("e2b",)),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", ("1.1b",)),
        ("a/Qwen3-4bit", ()),
    ],
)
def test_sizes_are_the_numbers_of_parameters(name: str, sizes: tuple[str, ...]) -> None:
    assert sizes_of(name) == sizes


def test_base_name_is_that_of_the_model_of_a_repack() -> None:
    assert base_name("a/Qwen3-8B-FP8-dynamic") == "qwen3-8b"
    assert base_name("b/Qwen3_8B") == "qwen3-8b"
