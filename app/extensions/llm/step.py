"""A step of a model: its tokens, its logits, and the interface of the object that computes it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy

if TYPE_CHECKING:
    from torch import Tensor

    from app.extensions.llm.config import Checkpoint
    from app.extensions.llm.llama_cpp.model_file import GGUFModel
    from app.extensions.llm.sequence import Sequence
    from app.extensions.llm.threads import ThreadGovernor

Rows: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
"""Rows of logits on a CPU."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive tokens of one sequence.

    A decode is a chunk of the newest token and its drafts.
    """

    sequence: Sequence
    tokens: Listed[int]
    start: int
    """Position of the first token."""
    blocks: Listed[int]
    samples: bool = True
    """True to get the logits of the next token."""
    drafts: int = 0
    """Number of drafts at the end; the logits before and after each are needed, too."""
    prompt_logits: bool = False
    """True to get the logits after each token."""

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)


class StepLogits(NamedTuple):
    """Logits of the next token of each chunk in `sampled`, and after each token of `prompts`.

    A chunk with drafts has several rows: first for its next token, then for the token after each
    draft. All numbers are valid until the next step.
    """

    sampled: list[Chunk]
    next_token: Tensor | Rows
    prompts: list[tuple[Chunk, Tensor]]


class ModelSizes(Protocol):
    """Sizes of a model that the engine needs."""

    @property
    def architecture(self) -> str:
        """Name of the architecture."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the head knows."""

    @property
    def max_position(self) -> int:
        """Longest sequence, in tokens."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""


class StepDevice(Protocol):
    """The device of a model, as the pacer knows it."""

    governor: ThreadGovernor

    def use_threads(self, kind: int) -> None:
        """Sets the number of threads of the next step, which is of this kind."""

    def waited_s(self) -> float:
        """Returns the time that threads waited for a core."""

    def info(self) -> dict[str, object]:
        """Returns the device and its settings, for statistics and messages."""


class StepRunner(Protocol):
    """Computes the steps of one model, whose keys and values it stores."""

    @property
    def config(self) -> ModelSizes:
        """Sizes of the model."""

    @property
    def device(self) -> StepDevice:
        """The device."""

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values."""

    def run(
        self, decodes: list[Chunk], chunks: list[Chunk], is_late: Callable[[float], bool]
    ) -> StepLogits:
        """Runs one step; see `ModelRunner`."""

    def rest(self) -> None:
        """Does what can wait until no sequence runs."""

    def load_weights(self, checkpoint: Checkpoint | GGUFModel) -> None:
        """Loads the weights. Raises ModelLoadError."""

    def make_cache(self) -> None:
        """Allocates keys and values. Raises ModelLoadError."""

    def free(self, parts: Collection[str]) -> None:
        """Frees "weights" and "kv_cache"."""
