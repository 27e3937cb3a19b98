"""Loads a model's configuration and weights, by the hub's names, from safetensors or a GGUF file.

Weights of GGUF files become float32. Quantised rows are stored in blocks of 32 with one scale each.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch

from app.llm.config import ARCHITECTURES, Checkpoint, read_config
from app.llm.errors import ModelLoadError
from app.llm.model_files import GGUFFile
from app.text.base import TokenizerLoadError
from app.text.files import read_json

INDEX = "model.safetensors.index.json"


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a folder or a .gguf file. Raises ModelLoadError, with one line, for any failure."""
    if path.is_file():
        return read_gguf(path)
    try:
        config, index = read_json(path / "config.json"), read_json(path / INDEX).get("weight_map")
        generation = read_json(path / "generation_config.json")
    except TokenizerLoadError as error:
        raise ModelLoadError(str(error)) from error
    if not config:
        raise ModelLoadError(f"{path} holds no config.json.")
    named = set(map(str, index.values())) if isinstance(index, dict) else set()
    files = [path / name for name in sorted(named)] or sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelLoadError(f"{path} holds no .safetensors file.")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = ends if isinstance(ends, list) else [ends] if isinstance(ends, int) else []
    return Checkpoint(read_config(config), _safetensors(files), eos_token_ids=frozenset(ids))


def _safetensors(files: Sequence[Path]) -> dict[str, Callable[[], torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Callable[[], torch.Tensor]] = {}
    for file in files:
        if not file.is_file():
            raise ModelLoadError(f"{file}, which {INDEX} names, is not there.")
        try:
            opened = safe_open(file, framework="pt")  # closes with its last reference
        except (SafetensorError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelLoadError(f"{file} is cut off or no safetensors file: {reason}") from error
        names: list[str] = opened.keys()
        weights |= {name: partial(opened.get_tensor, name) for name in names}
    return weights


HUB_PARTS: Final[Mapping[str, str]] = {
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
"""Names of tensors, or of their parts in a layer, in GGUF files and on the hub."""


def _halves(blocks: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the first `count` float16 numbers of each block."""
    return blocks[:, : 2 * count].contiguous().view(torch.float16).float()


def _half_bytes(packed: torch.Tensor) -> torch.Tensor:
    """Returns the lower halves of all bytes of a block, then the upper halves."""
    return torch.cat((packed & 15, packed >> 4), dim=1).float()


class Encoding(NamedTuple):
    """`decode` copies bytes [blocks, block_bytes] to float32 [blocks, block_size]."""

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[torch.Tensor], torch.Tensor]


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    scale, least = _halves(blocks, 2).split(1, dim=1)
    return _half_bytes(blocks[:, 4:]).mul_(scale).add_(least)


ENCODINGS: Final[Mapping[int, Encoding]] = {
    0: Encoding("F32", 1, 4, lambda blocks: blocks.view(torch.float32).clone()),
    1: Encoding("F16", 1, 2, lambda blocks: blocks.view(torch.float16).float()),
    2: Encoding(
        "Q4_0", 32, 18, lambda blocks: (_half_bytes(blocks[:, 2:]) - 8).mul_(_halves(blocks, 1))
    ),
    3: Encoding("Q4_1", 32, 20, _q4_1),
    8: Encoding("Q8_0", 32, 34, lambda blocks: blocks[:, 2:].view(torch.int8) * _halves(blocks, 1)),
    30: Encoding("BF16", 1, 2, lambda blocks: blocks.view(torch.bfloat16).float()),
}
"""Supported encodings by their numbers in GGUF files."""


def read_tensor(file: GGUFFile, name: str) -> torch.Tensor:
    """Returns a float32 copy of a tensor, by its name in the file. Raises ModelLoadError."""
    info = file.tensors[name]
    encoding = ENCODINGS.get(info.kind)
    if encoding is None:
        known = ", ".join(it.name for it in ENCODINGS.values())
        raise ModelLoadError(f"The tensor {name} is of type {info.kind}; only {known} are read.")
    if info.shape[-1] % encoding.block_size:
        raise ModelLoadError(
            f"The tensor {name} is {list(info.shape)}, which {encoding.name} cannot be."
        )
    size = math.prod(info.shape) // encoding.block_size * encoding.block_bytes
    content = torch.frombuffer(file.content(name, size), dtype=torch.uint8)
    return encoding.decode(content.view(-1, encoding.block_bytes)).view(info.shape)


GGUF_FIELDS: Final[Mapping[str, str]] = {
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
"""Names in a head, behind the architecture's, by the hub's names."""


def read_gguf(path: Path) -> Checkpoint:
    """Reads a GGUF file. Raises ModelLoadError for a model of another architecture."""
    file = GGUFFile(path)
    kind = str(file.fields.get("general.architecture"))
    if kind not in ARCHITECTURES.values():
        known = ", ".join(ARCHITECTURES.values())
        raise ModelLoadError(f"The architecture {kind} is not supported, only {known}.")
    scaling = file.fields.get(f"{kind}.rope.scaling.type")
    if scaling not in (None, "none") or "rope_freqs.weight" in file.tensors:
        raise ModelLoadError(
            f"{file.path} scales its rotations, which is not supported in GGUF files."
        )
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        raise ModelLoadError("The weights lack the tensor token_embd.weight.")
    document = {name: file.fields.get(f"{kind}.{own}") for name, own in GGUF_FIELDS.items()}
    document |= {"model_type": kind, "vocab_size": embedding.shape[0]}
    config = read_config(document | {"tie_word_embeddings": "output.weight" not in file.tensors})
    weights = {}
    for name in file.tensors:  # blk.0.ffn_up.weight -> model.layers.0.mlp.up_proj.weight
        *layer, part, suffix = name.removeprefix("blk.").split(".")
        prefix = "".join(f"model.layers.{number}." for number in layer)
        weights[f"{prefix}{HUB_PARTS.get(part, part)}.{suffix}"] = partial(read_tensor, file, name)
    ends = {file.fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")}
    ids = frozenset(it for it in ends if isinstance(it, int))
    # Converters to GGUF reorder the queries and keys of Llama only.
    return Checkpoint(config, weights, kind == "llama", ids, file)
