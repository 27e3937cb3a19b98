"""A GGUF file for llama.cpp: its sizes, and whether it can be loaded.

llama.cpp ends its process for some broken files. Therefore the head of a file is read here first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from app.extensions.gguf.file import TensorInfo
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.gguf_file import GGUFFile

TENSOR_TYPES: Final = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 40),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
    40: (64, 36),
    41: (128, 18),
}
"""Types of tensors in GGUF files: numbers of a block, and its bytes."""
SIZES: Final = (
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
)
"""Sizes in the head, behind the architecture's name, that every decoder has."""
MAX_SIZE: Final = 1 << 31
MAX_LAYERS: Final = 512
"""Layers of a model for which the library has room; it ends the process for more."""
CONTROL: Final = 3
"""Kind of control tokens."""


class GGUFSizes(Struct, frozen=True, kw_only=True):
    """Sizes of a model, from the head of its file."""

    architecture: str
    vocab_size: int
    max_position: int
    num_parameters: int


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A file that llama.cpp computes."""

    config: GGUFSizes
    file: GGUFFile
    eos_token_ids: frozenset[int]
    control_ids: tuple[int, ...]
    """Control tokens; some may end a reply."""


def read_model(path: Path) -> GGUFModel:
    """Reads and checks the head of a file.

    Raises:
        ModelLoadError: The file is broken, or is not a model.
    """
    file = GGUFFile(path)
    fields = file.fields
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelLoadError(f"{path} does not name an architecture.")
    sizes = {name: _size(path, fields.get(f"{architecture}.{name}"), name) for name in SIZES}
    if sizes["block_count"] > MAX_LAYERS:
        raise ModelLoadError(
            f"{path} has {sizes['block_count']} layers, but llama.cpp computes at most "
            f"{MAX_LAYERS}."
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError(f"{path} does not contain the tensor token_embd.weight.")
    for name, tensor in file.tensors.items():
        _check_tensor(file, name, tensor)
    ids = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    types = fields.get("tokenizer.ggml.token_type")
    control_ids: tuple[int, ...] = ()
    if isinstance(types, list):
        control_ids = tuple(index for index, kind in enumerate(types) if kind == CONTROL)
    return GGUFModel(
        GGUFSizes(
            architecture=architecture,
            vocab_size=embedding.shape[0],
            max_position=sizes["context_length"],
            num_parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        ),
        file=file,
        eos_token_ids=frozenset(
            token_id for token_id in ids if isinstance(token_id, int) and token_id >= 0
        ),
        control_ids=control_ids,
    )


def _size(path: Path, value: object, name: str) -> int:
    """Returns a size; some architectures have one for each layer, and the largest counts."""
    values = value if isinstance(value, list) else [value]
    numbers = [number for number in values if isinstance(number, int)]
    if len(numbers) < len(values) or not numbers or not 0 < max(numbers) < MAX_SIZE:
        raise ModelLoadError(f"{path} has no valid {name}.")
    return max(numbers)


def _check_tensor(file: GGUFFile, name: str, tensor: TensorInfo) -> None:
    if tensor.kind not in TENSOR_TYPES:
        raise ModelLoadError(f"{file.path}: the tensor {name} has the unknown type {tensor.kind}.")
    numbers, size = TENSOR_TYPES[tensor.kind]
    if tensor.shape[-1] % numbers or len(tensor.shape) > 4:
        raise ModelLoadError(
            f"{file.path}: the tensor {name} has the invalid shape {list(tensor.shape)}."
        )
    file.content(name, math.prod(tensor.shape) // numbers * size)
