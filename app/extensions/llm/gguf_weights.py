"""Reads the configuration and the weights of a GGUF file.

Weights become float32. Quantized rows are stored in blocks of 32 with one scale each.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from app.extensions.llm.config import ARCHITECTURES, Checkpoint, read_config
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.gguf_file import GGUFFile

HUB_NAMES: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of tensors, or of their parts in a layer: in GGUF files, and on the hub."""
CONFIG_FIELDS: Final[Mapping[str, str]] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
"""Names on the hub, with the names in a head behind the architecture's."""


def read_gguf(path: Path) -> Checkpoint:
    """Reads a GGUF file.

    Raises:
        ModelLoadError: The model is of another architecture, or the file cannot be used.
    """
    file = GGUFFile(path)
    architecture = str(file.fields.get("general.architecture"))
    if architecture not in ARCHITECTURES.values():
        supported = ", ".join(ARCHITECTURES.values())
        raise ModelLoadError(
            f"The architecture {architecture} is not supported; use one of {supported}."
        )
    scaling = file.fields.get(f"{architecture}.rope.scaling.type")
    if scaling not in (None, "none") or "rope_freqs.weight" in file.tensors:
        raise ModelLoadError(
            f"{file.path} uses rotary scaling, which is not supported in GGUF files."
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError("The weights do not contain the tensor token_embd.weight.")
    document: dict[str, object] = {}
    for hub_name, field in CONFIG_FIELDS.items():
        document[hub_name] = file.fields.get(f"{architecture}.{field}")
    document["model_type"] = architecture
    document["vocab_size"] = embedding.shape[0]
    document["tie_word_embeddings"] = "output.weight" not in file.tensors
    eos_ids = set()
    for name in ("eos", "eot"):
        token_id = file.fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token_id, int):
            eos_ids.add(token_id)
    return Checkpoint(
        read_config(document),
        weights={_hub_name(name): partial(read_tensor, file, name) for name in file.tensors},
        # Converters to GGUF reorder the queries and keys of Llama only.
        interleaved=architecture == "llama",
        eos_token_ids=frozenset(eos_ids),
        file=file,
    )


def read_tensor(file: GGUFFile, name: str) -> Tensor:
    """Returns a float32 copy of a tensor, by its name in the file.

    Raises:
        ModelLoadError: The encoding is not supported, or the file is cut off.
    """
    info = file.tensors[name]
    encodings = supported_encodings()
    encoding = encodings.get(info.kind)
    if encoding is None:
        supported = ", ".join(encoding.name for encoding in encodings.values())
        raise ModelLoadError(
            f"The tensor {name} is of type {info.kind}; only {supported} are supported."
        )
    if info.shape[-1] % encoding.block_size:
        raise ModelLoadError(
            f"The tensor {name} has the shape {list(info.shape)}, which {encoding.name} does not "
            "support."
        )
    size = math.prod(info.shape) // encoding.block_size * encoding.block_bytes
    content = torch.frombuffer(file.content(name, size), dtype=torch.uint8)
    return encoding.decode(content.view(-1, encoding.block_bytes)).view(info.shape)


class Encoding(NamedTuple):
    """`decode` copies bytes [blocks, block_bytes] to float32 [blocks, block_size]."""

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[Tensor], Tensor]


def supported_encodings() -> Mapping[int, Encoding]:
    """Returns the supported encodings by their numbers in GGUF files."""
    return {
        0: Encoding("F32", 1, 4, _decode_f32),
        1: Encoding("F16", 1, 2, _decode_f16),
        2: Encoding("Q4_0", 32, 18, _decode_q4_0),
        3: Encoding("Q4_1", 32, 20, _decode_q4_1),
        8: Encoding("Q8_0", 32, 34, _decode_q8_0),
        30: Encoding("BF16", 1, 2, _decode_bf16),
    }


def _hub_name(name: str) -> str:
    """Returns the hub's name of a tensor.

    blk.0.ffn_up.weight becomes model.layers.0.mlp.up_proj.weight.
    """
    *layer, part, suffix = name.removeprefix("blk.").split(".")
    prefix = "".join(f"model.layers.{number}." for number in layer)
    return f"{prefix}{HUB_NAMES.get(part, part)}.{suffix}"


def _decode_f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32).clone()


def _decode_f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _decode_q4_0(blocks: Tensor) -> Tensor:
    return (_half_bytes(blocks[:, 2:]) - 8).mul_(_float16_head(blocks, 1))


def _decode_q4_1(blocks: Tensor) -> Tensor:
    scale, minimum = _float16_head(blocks, 2).split(1, dim=1)
    return _half_bytes(blocks[:, 4:]).mul_(scale).add_(minimum)


def _decode_q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8) * _float16_head(blocks, 1)


def _decode_bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def _float16_head(blocks: Tensor, count: int) -> Tensor:
    """Returns the first `count` float16 numbers of each block."""
    return blocks[:, : 2 * count].contiguous().view(torch.float16).float()


def _half_bytes(packed: Tensor) -> Tensor:
    """Returns the lower halves of all bytes of a block, then the upper halves."""
    return torch.cat((packed & 15, packed >> 4), dim=1).float()
