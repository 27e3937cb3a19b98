"""Makes the models that the real vLLM serves: random weights of a few MB, our tokenizer.

`write_model` and `write_adapter` write folders in the layout of Hugging Face. The weights are the
same each time.
"""

import json
import random
import shutil
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

TEXT_DATA = Path(__file__).parents[2] / "app" / "core" / "text" / "data"
"""The tokenizer and the chat template of the repository."""
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>")
"""Tokens that parsers of reasoning and of tool calls look up in the vocabulary."""
HIDDEN_SIZE = 128
INTERMEDIATE_SIZE = 256
LAYER_COUNT = 2
HEAD_COUNT = 2
HEAD_SIZE = 64
"""The smallest sizes for which vLLM has CPU kernels."""
MAX_POSITION = 8192
SEED = 1
SCALE = 0.05
"""Standard deviation of the random weights."""
LORA_RANK = 8
LORA_MODULES = ("q_proj", "v_proj")

Shape = Sequence[int]


def write_model(folder: Path) -> None:
    """Writes a model of Llama's architecture into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary_size = _write_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": LAYER_COUNT,
        "num_attention_heads": HEAD_COUNT,
        "num_key_value_heads": HEAD_COUNT,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITION,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary_size, HIDDEN_SIZE)}
    for layer in range(LAYER_COUNT):
        shapes |= _layer_shapes(f"model.layers.{layer}")
    shapes["model.norm.weight"] = (HIDDEN_SIZE,)
    write_safetensors(folder / "model.safetensors", shapes)


def write_adapter(folder: Path) -> None:
    """Writes a LoRA adapter for the model of `write_model` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": LORA_MODULES,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
    shapes: dict[str, Shape] = {}
    for layer in range(LAYER_COUNT):
        for module in LORA_MODULES:
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            shapes[f"{prefix}.lora_A.weight"] = (LORA_RANK, HIDDEN_SIZE)
            shapes[f"{prefix}.lora_B.weight"] = (HEAD_COUNT * HEAD_SIZE, LORA_RANK)
    write_safetensors(folder / "adapter_model.safetensors", shapes)


def write_safetensors(path: Path, shapes: Mapping[str, Shape]) -> None:
    """Writes random float32 tensors in the format of safetensors; those of norms are ones.

    The file has the length of its header (8 bytes, little endian), the header as JSON, and the
    values. It appears when it is complete.
    """
    source = random.Random(SEED)
    header: dict[str, object] = {}
    values = array("f")
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        start = len(values) * values.itemsize
        if "norm" in name:
            values.extend([1.0] * count)
        else:
            values.extend(source.gauss(0.0, SCALE) for _ in range(count))
        end = len(values) * values.itemsize
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    encoded_header = json.dumps(header).encode()
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded_header)))
        file.write(encoded_header)
        values.tofile(file)
    partial.replace(path)


def _layer_shapes(prefix: str) -> dict[str, Shape]:
    attention_size = HEAD_COUNT * HEAD_SIZE
    return {
        f"{prefix}.input_layernorm.weight": (HIDDEN_SIZE,),
        f"{prefix}.self_attn.q_proj.weight": (attention_size, HIDDEN_SIZE),
        f"{prefix}.self_attn.k_proj.weight": (attention_size, HIDDEN_SIZE),
        f"{prefix}.self_attn.v_proj.weight": (attention_size, HIDDEN_SIZE),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN_SIZE, attention_size),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN_SIZE,),
        f"{prefix}.mlp.gate_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        f"{prefix}.mlp.up_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN_SIZE, INTERMEDIATE_SIZE),
    }


def _write_tokenizer(folder: Path) -> int:
    """Copies the tokenizer with `MARKS` added to its vocabulary, and returns the token count."""
    tokenizer = json.loads((TEXT_DATA / "tokenizer.json").read_text("utf-8"))
    next_id = len(tokenizer["model"]["vocab"])
    plain_token = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    for mark in MARKS:
        tokenizer["added_tokens"].append({"id": next_id, "content": mark, **plain_token})
        next_id += 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    config = json.loads((TEXT_DATA / "tokenizer_config.json").read_text("utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    shutil.copy(TEXT_DATA / "chat_template.jinja", folder)
    return next_id
