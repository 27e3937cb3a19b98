"""Runs the model on a device: takes the token ids of a step, and returns logits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from collections.abc import Sequence as Listed
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from app.extensions.llm.attention import PagedStore, StepAttention
from app.extensions.llm.batch_invariant import tile_linears
from app.extensions.llm.builder import Builder
from app.extensions.llm.config import Checkpoint, ModelConfig
from app.extensions.llm.decoder import Decoder
from app.extensions.llm.device import DeviceManager
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.step import Chunk, StepLogits

if TYPE_CHECKING:
    from app.extensions.llm.llama_cpp.model_file import GGUFModel

SPARE_BYTES: Final = 64 << 20
"""Memory reserved for the tensors of a step."""


class ModelRunner:
    """One model on one device, with its keys and values in `num_blocks` blocks.

    `length` is the maximum number of tokens of a sequence.

    Raises:
        ModelLoadError: The model, or the blocks, do not fit the device.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: DeviceManager,
        num_blocks: int,
        block_size: int,
        length: int,
        batch_invariant: bool = False,
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        self.device = device
        if batch_invariant and device.device.type != "cpu":
            raise ModelLoadError(
                f"batch_invariant is supported only on CPUs, not on {device.device.type}."
            )
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._length = length
        self._batch_invariant = batch_invariant
        self.load_weights(checkpoint)
        self.make_cache()

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values."""
        return sum(layer.nbytes for layer in self.store.layers)

    def load_weights(self, checkpoint: Checkpoint | GGUFModel) -> None:
        """Loads the weights.

        Raises:
            ModelLoadError: The weights are of another model, or exceed the free memory.
        """
        device = self.device
        if not isinstance(checkpoint, Checkpoint) or checkpoint.config != self.config:
            raise ModelLoadError("The model's configuration has changed since the server started.")
        needed = self.config.num_parameters
        if not device.int8:
            needed *= device.dtype.itemsize
        free = device.free_bytes()
        if free is not None and needed > free:
            raise ModelLoadError(
                f"The weights require {needed >> 20} MiB in {device.info()['dtype']}, "
                f"but only {free >> 20} MiB are free."
            )
        with torch.inference_mode():
            builder = Builder(
                checkpoint,
                device.dtype,
                device.device,
                packed=device.packs,
                int8=device.int8,
            )
            self.model = Decoder(builder, self._length)
            if self._batch_invariant:
                tile_linears(self.model)

    def make_cache(self) -> None:
        """Allocates keys and values.

        Raises:
            ModelLoadError: They exceed the free memory; the message has the number of blocks that
                fits.
        """
        config = self.config
        device = self.device
        dtype = device.dtype
        if device.device.type == "cpu":
            dtype = torch.float32
        token_bytes = 2 * config.num_layers * config.kv_size * dtype.itemsize
        block_bytes = token_bytes * self._block_size
        needed = self._num_blocks * block_bytes
        free = device.free_bytes()
        if free is not None and needed > free - SPARE_BYTES:
            raise ModelLoadError(
                f"{self._num_blocks} KV cache blocks require {needed >> 20} MiB, "
                f"but only {free >> 20} MiB are free. "
                f"Use num_blocks={max(0, free - SPARE_BYTES) // block_bytes}."
            )
        with torch.inference_mode():
            self.store = PagedStore(
                config, self._num_blocks, self._block_size, dtype=dtype, device=device.device
            )

    def free(self, parts: Collection[str]) -> None:
        """Frees "weights" and "kv_cache"; `run` needs `load_weights` and `make_cache` first."""
        if "weights" in parts:
            del self.model
        if "kv_cache" in parts:
            del self.store
        gc.collect()
        device = self.device.device
        if device.type != "cpu":
            torch.get_device_module(device).empty_cache()

    def run(
        self, decodes: list[Chunk], chunks: list[Chunk], is_late: Callable[[float], bool]
    ) -> StepLogits:
        """Runs one step. `is_late` is as for `Decoder`; a dropped chunk leaves `chunks`."""
        with torch.inference_mode():
            parts = [*decodes, *chunks]
            if self._batch_invariant:
                attention = StepAttention(self.store, parts, [])
            else:
                attention = StepAttention(self.store, decodes, chunks)
            token_ids = [token_id for part in parts for token_id in part.tokens]
            positions = [position for part in parts for position in range(part.start, part.end)]
            device = self.device.device
            hidden = self.model(
                torch.tensor(token_ids, device=device),
                torch.tensor(positions, device=device),
                attention,
                is_late,
            )
            return self._logits(hidden, [*decodes, *chunks])

    def rest(self) -> None:
        """Does nothing: no work is left over."""

    def _logits(self, hidden: Tensor, chunks: Listed[Chunk]) -> StepLogits:
        """Applies the head to the requested tokens only: mostly the last one of a prompt."""
        sampled: list[Chunk] = []
        rows: list[int] = []
        prompts = []
        first = 0
        for chunk in chunks:
            last = first + len(chunk.tokens)
            if chunk.prompt_logits:
                prompts.append((chunk, self.model.logits(hidden[first:last])))
            if chunk.samples:
                sampled.append(chunk)
                rows += range(last - 1 - chunk.drafts, last)
            first = last
        if len(rows) < len(hidden):
            hidden = hidden[torch.tensor(rows, dtype=torch.long, device=hidden.device)]
        return StepLogits(sampled, self.model.logits(hidden), prompts)
