"""A model out of a GGUF file: its configuration, and its weights under the names of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from app.llm.checkpoint import Checkpoint
from app.llm.config import ModelConfig
from app.llm.errors import ModelLoadError
from app.llm.gguf_file import GGUFFile

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
LAYER_PARTS: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER_PARTS: Final[Mapping[str, str]] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


class GGUFWeights:
    """Tensors by the names of the hub, dequantised when they are asked for."""

    def __init__(self, file: GGUFFile, interleaved: bool) -> None:
        self.interleaved = interleaved
        self._file = file

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and gguf_name(name) in self._file.tensors

    def get(self, name: str) -> torch.Tensor:
        return self._file.tensor(gguf_name(name))


def gguf_name(name: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` is `blk.0.ffn_up.weight` there."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTER_PARTS:
        return f"{OUTER_PARTS[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_PARTS.get(part, part)}.{kind}"


def read_gguf(path: Path) -> Checkpoint:
    """ModelLoadError for what is not a file of a model that is known here."""
    file = GGUFFile(path)
    kind = str(file.field("general.architecture"))
    if kind not in ARCHITECTURES:
        raise ModelLoadError(f"The architecture {kind} is not supported, only {', '.join(ARCHITECTURES)}.")
    # What converts to GGUF reorders queries and keys of Llama alone.
    weights = GGUFWeights(file, interleaved=kind == "llama")
    ends = {file.field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")}
    return Checkpoint(_config(file, kind), weights, frozenset(it for it in ends if isinstance(it, int)), file)


def _config(file: GGUFFile, kind: str) -> ModelConfig:
    if file.field(f"{kind}.rope.scaling.type") not in (None, "none") or "rope_freqs.weight" in file.tensors:
        raise ModelLoadError(f"{file.path} scales its rotations, which is not supported in GGUF files.")
    hidden, heads = file.integer(f"{kind}.embedding_length"), file.integer(f"{kind}.attention.head_count")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError("The weights lack the tensor token_embd.weight.")
    return ModelConfig(
        architecture=kind,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=file.integer(f"{kind}.feed_forward_length"),
        num_layers=file.integer(f"{kind}.block_count"),
        num_heads=heads,
        num_kv_heads=file.integer(f"{kind}.attention.head_count_kv", heads),
        head_dim=file.integer(f"{kind}.attention.key_length", hidden // max(1, heads)),
        rms_norm_eps=file.number(f"{kind}.attention.layer_norm_rms_epsilon", 1e-6),
        rope_theta=file.number(f"{kind}.rope.freq_base", 10_000.0),
        max_position=file.integer(f"{kind}.context_length", 2048),
        tied="output.weight" not in file.tensors,
    )
