"""Runs a GGUF model with llama.cpp: takes the chunks of a step, and returns logits."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import torch

from app.extensions.llm.core_wait import core_wait_s
from app.extensions.llm.errors import LLMError, ModelLoadError
from app.extensions.llm.llama_cpp.binding import (
    LOAD_COPY,
    LOAD_MODE_AT,
    MAX_SEQUENCES,
    Context,
    Library,
    load_library,
)
from app.extensions.llm.llama_cpp.cells import BlockCells
from app.extensions.llm.llama_cpp.huge_pages import is_copied
from app.extensions.llm.llama_cpp.package import VERSION
from app.extensions.llm.llama_cpp.step_batches import StepBatches
from app.extensions.llm.step import Chunk, StepLogits
from app.extensions.llm.threads import ThreadGovernor
from config.cores import usable_cores

if TYPE_CHECKING:
    from app.extensions.llm.config import Checkpoint
    from app.extensions.llm.engine_options import EngineOptions
    from app.extensions.llm.llama_cpp.model_file import GGUFModel
    from app.extensions.llm.sequence import Sequence

HALF_BYTES: Final = 2
"""Bytes of a number in the KV cache, which is float16."""
MAX_BATCH_TOKENS: Final = 1024
"""Maximum tokens of a call; the library reserves logits for each."""
MAX_RUNNING: Final = MAX_SEQUENCES - 1
"""Maximum running sequences; one more is used to save and load blocks."""
PADDING: Final = 256
"""The library rounds its cells up to a multiple of this."""


class CpuThreads:
    """The CPU, and the number of llama.cpp's threads on it. Sampling uses one thread."""

    def __init__(self, num_threads: int) -> None:
        """`num_threads` 0 lets `governor` try counts, unless OMP_NUM_THREADS is set."""
        torch.set_num_threads(1)
        own_count = os.environ.get("OMP_NUM_THREADS", "")
        if not num_threads and own_count.isdecimal():
            num_threads = int(own_count)
        if num_threads:
            self.governor = ThreadGovernor(num_threads)
        else:
            cores = usable_cores()
            self.governor = ThreadGovernor(cores, first=round(cores - os.getloadavg()[0]))
        self.count = self.governor.threads(0)
        """Threads of the next step."""

    def use_threads(self, kind: int) -> None:
        """Sets the number of threads of the next step, which is of this kind."""
        self.count = self.governor.threads(kind)

    def waited_s(self) -> float:
        """Returns the time that threads waited for a core, if fewer threads can be used."""
        if self.count > 1 and len(self.governor.counts) > 1:
            return core_wait_s()
        return 0.0

    def info(self) -> dict[str, object]:
        """Returns the device and its settings, for statistics and messages."""
        return {
            "device": "cpu",
            "device_type": "cpu",
            "dtype": "gguf",
            "library": f"llama.cpp (xllamacpp {VERSION})",
            "num_threads": self.count,
        }


class LlamaRunner:
    """One model in llama.cpp, with keys and values for `num_blocks` blocks.

    Raises:
        ModelLoadError: The library cannot compute the model, or the options do not fit it.
    """

    def __init__(self, model: GGUFModel, options: EngineOptions) -> None:
        if options.max_num_seqs > MAX_RUNNING:
            raise ModelLoadError(
                f"llama.cpp computes at most {MAX_RUNNING} sequences: max_num_seqs is "
                f"{options.max_num_seqs}."
            )
        self.config = model.config
        self.device = CpuThreads(options.num_threads)
        self._library: Library = load_library()
        self._block_size = options.block_size
        cells = options.num_blocks * options.block_size
        self._cells = -(-cells // PADDING) * PADDING
        # Each sequence of a context takes time in each step, so there are no more than needed.
        self._sequences = options.max_num_seqs + 1
        # A prompt's part and the decodes beside it are one call. The library ends the process if a
        # batch has fewer tokens than a context has sequences. It takes no batch that is larger than
        # its cache, which has room for MAX_SEQUENCES.
        batch_tokens = options.max_num_batched_tokens + options.max_num_seqs
        self._batch_tokens = min(batch_tokens, MAX_BATCH_TOKENS, self._cells)
        self._batch_tokens = max(self._batch_tokens, self._sequences)
        self._model: Any = None
        self._context: Context | None = None
        self._blocks: BlockCells[Sequence] | None = None
        self._has_cache = False
        self.end_ids: frozenset[int] = frozenset()
        """Tokens that end a reply, according to the library."""
        self.has_window = False
        """True for sliding-window attention: the library forgets tokens outside of the window.

        Another sequence may need them, so prefixes cannot be shared, and drafts cannot be taken
        back.
        """
        self.load_weights(model)
        self.make_cache()

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values, if every layer has as many as the first."""
        return self._cells * self._token_bytes

    def load_weights(self, checkpoint: Checkpoint | GGUFModel) -> None:
        """Loads the weights.

        Raises:
            ModelLoadError: The library cannot load them, or they are of another model.
        """
        if checkpoint.config != self.config or checkpoint.file is None:
            raise ModelLoadError("The model's configuration has changed since the server started.")
        path = checkpoint.file.path
        library = self._library
        library.take_errors()
        parameters = library.model_default_params()
        if is_copied(path):
            parameters.set(LOAD_MODE_AT, LOAD_COPY)
        model = library.model_load(os.fsencode(path), parameters)
        if not model:
            raise ModelLoadError(f"llama.cpp cannot load {path}: {library.take_errors()}.")
        reason = self._unsupported(model)
        if reason is not None:
            library.model_free(model)
            raise ModelLoadError(f"{path}: {reason}.")
        self._model = model
        self.has_window = library.window(model) > 0
        self._token_bytes = _token_bytes(checkpoint.file.fields, self.config.architecture)
        vocabulary = library.model_vocab(model)
        if library.vocab_size(vocabulary) != self.config.vocab_size:
            raise ModelLoadError(f"{path}: the vocabulary does not fit the embedding.")
        control_ids = getattr(checkpoint, "control_ids", ())
        self.end_ids = frozenset(
            token_id for token_id in control_ids if library.is_end(vocabulary, token_id)
        )
        self._open()

    def make_cache(self) -> None:
        """Allocates keys and values, once the weights are loaded.

        Raises:
            ModelLoadError: They exceed the free memory.
        """
        self._has_cache = True
        self._open()

    def free(self, parts: Collection[str]) -> None:
        """Frees "weights" and "kv_cache"; `run` needs `load_weights` and `make_cache` first."""
        if self._context is not None:
            self._context.close()
            self._context = None
            self._blocks = None
        if "weights" in parts and self._model is not None:
            self._library.model_free(self._model)
            self._model = None
        if "kv_cache" in parts:
            self._has_cache = False
        gc.collect()

    def run(
        self, decodes: list[Chunk], chunks: list[Chunk], is_late: Callable[[float], bool]
    ) -> StepLogits:
        """Runs one step, in one call of the library if no block was lost. Drops no chunk."""
        assert self._context is not None and self._blocks is not None
        is_late(0.0)  # a sign of life
        self._context.use_threads(self.device.count)
        batches = StepBatches(self._context, self._blocks, self.config.vocab_size)
        try:
            return batches.run((*decodes, *chunks))
        except LLMError as error:
            raise LLMError(f"{error} {self._library.take_errors()}.") from error

    def rest(self) -> None:
        """Saves the blocks of ended sequences, which a new one would have to wait for."""
        if self._blocks is not None:
            self._blocks.release_ended()

    def _open(self) -> None:
        if self._model is None or not self._has_cache:
            return
        self._context = Context(
            self._library,
            self._model,
            cells=self._cells,
            batch_tokens=self._batch_tokens,
            sequences=self._sequences,
        )
        self._blocks = BlockCells(
            self._context, self._block_size, self._sequences, shares=not self.has_window
        )

    def _unsupported(self, model: object) -> str | None:
        library = self._library
        if library.has_encoder(model) or not library.has_decoder(model):
            return "models with an encoder are not supported"
        if library.is_recurrent(model) or library.is_hybrid(model):
            return "models with recurrent layers are not supported"
        if library.is_diffusion(model):
            return "diffusion models are not supported"
        return None


def _token_bytes(fields: dict[str, object], architecture: str) -> int:
    """Returns the bytes of a token's keys and values."""

    def size(name: str, default: int) -> int:
        value = fields.get(f"{architecture}.{name}", default)
        if isinstance(value, list):
            value = max(value)
        return int(str(value))

    heads = size("attention.head_count", 1)
    kv_heads = size("attention.head_count_kv", heads)
    head_size = size("embedding_length", 1) // heads
    keys = size("attention.key_length", head_size)
    values = size("attention.value_length", head_size)
    return size("block_count", 1) * kv_heads * (keys + values) * HALF_BYTES
