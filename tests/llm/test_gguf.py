"""The same model out of a GGUF file: names, orders and quantisations."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from safetensors.torch import load_file

from app.llm.errors import ModelLoadError
from app.llm.gguf import gguf_name, read_gguf
from tests.llm.tiny import Shape, generate, make_engine, make_model, prompts

pytestmark = pytest.mark.engine

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def write(folder: Path, file: Path, kind: str, leave_out: str = "", quantised: str = "F32") -> None:
    """What llama.cpp's converter makes of a saved model."""
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(2)
    writer.add_context_length(1024)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_eos_token_id(5)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == leave_out:
            continue
        numbers = tensor.float()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = HEADS if "q_proj" in name else KV_HEADS
            numbers = numbers.reshape(heads, 2, -1, 64).transpose(1, 2).reshape(numbers.shape)
        if numbers.ndim == 2 and quantised != "F32":
            to = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(gguf_name(name), quantize(numbers.numpy(), to), raw_dtype=to)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(numbers.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "shape", [Shape("llama"), Shape("qwen2", tied=True), Shape("qwen3")], ids=lambda shape: shape.kind
)
def test_tokens_are_those_of_the_folder(shape: Shape, tmp_path: Path) -> None:
    make_model(tmp_path, shape)
    file, wanted = tmp_path / "model.gguf", prompts(4)
    write(tmp_path, file, shape.kind)
    checkpoint = read_gguf(file)
    assert (checkpoint.config.tied, checkpoint.eos_token_ids) == (shape.tied, {5})
    (folder := tmp_path / "eps").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    assert generate(make_engine(file), wanted) == generate(make_engine(folder), wanted)


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2), ("Q4_1", 0.1)])
def test_quantised_weights_are_near(kind: str, error: float, tmp_path: Path) -> None:
    make_model(tmp_path)
    write(tmp_path, tmp_path / "model.gguf", "llama", quantised=kind)
    weights, plain = read_gguf(tmp_path / "model.gguf").weights, load_file(tmp_path / "model.safetensors")
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight"):
        read = weights.get(name)
        assert read.shape == plain[name].shape
        assert float((read - plain[name]).abs().max()) < error, name
    assert generate(make_engine(tmp_path / "model.gguf"), prompts(2))


def test_refusals(tmp_path: Path) -> None:
    make_model(tmp_path)
    file, name = tmp_path / "model.gguf", "model.layers.0.mlp.down_proj.weight"
    write(tmp_path, file, "llama", leave_out=name)
    with pytest.raises(ModelLoadError, match=r"lack the tensor blk.0.ffn_down.weight"):
        make_engine(file)
    write(tmp_path, file, "gemma")
    with pytest.raises(ModelLoadError, match="The architecture gemma is not supported"):
        make_engine(file)
    write(tmp_path, file, "llama")
    content = file.read_bytes()
    for size in (len(content) // 2, len(content) - 100):
        file.write_bytes(content[:size])
        with pytest.raises(ModelLoadError):
            make_engine(file)


def test_weights_are_copies(tmp_path: Path) -> None:
    make_model(tmp_path)
    write(tmp_path, tmp_path / "model.gguf", "llama")
    tensor = read_gguf(tmp_path / "model.gguf").weights.get("model.norm.weight")
    tensor.add_(torch.ones_like(tensor))
