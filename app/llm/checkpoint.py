"""A model as it was found: its configuration and its weights, whatever they are kept in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from app.llm.config import ModelConfig
from app.llm.errors import ModelLoadError

if TYPE_CHECKING:
    from app.llm.gguf_file import GGUFFile


class Weights(Protocol):
    """Tensors by the names that Llama's have on the hub."""

    interleaved: bool
    """Queries and keys come in the order that rotates neighbours, else halves."""

    def __contains__(self, name: object) -> bool: ...

    def get(self, name: str) -> torch.Tensor:
        """ModelLoadError when it is not there."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it was found; `file` is the GGUF file, whose head holds the tokenizer."""

    config: ModelConfig
    weights: Weights
    eos_token_ids: frozenset[int] = frozenset()
    file: GGUFFile | None = None


def fitted(weights: Weights, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor, which must have this shape."""
    tensor = weights.get(name)
    if tuple(tensor.shape) != shape:
        raise ModelLoadError(
            f"The tensor {name} is {list(tensor.shape)}, the configuration says {list(shape)}."
        )
    return tensor
