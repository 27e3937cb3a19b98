"""Runs the model over one step: token ids in, logits out, keys and values kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from app.llm.attention import ChunkRows, StepAttention
from app.llm.config import Checkpoint, ModelConfig
from app.llm.decoder import Decoder
from app.llm.device_manager import DeviceManager
from app.llm.errors import ModelLoadError
from app.llm.kv_store import DecodeRow, DecodeWorkspace, PagedStore

SPARE_BYTES: Final = 64 << 20
"""Memory that is left for the tensors of a step."""


class Chunk(ChunkRows):
    """What is to be known of it: the next token, or those after each of its tokens."""

    __slots__ = ("key", "prompt_logits", "samples")

    def __init__(
        self,
        key: object,
        tokens: Sequence[int],
        start: int,
        blocks: Sequence[int],
        *,
        samples: bool,
        prompt_logits: bool = False,
    ) -> None:
        super().__init__(tokens, start, blocks)
        self.key, self.samples, self.prompt_logits = key, samples, prompt_logits


class StepLogits:
    """`rows` by key: the logits of the next token; `prompts`: those after each token of a chunk."""

    __slots__ = ("logits", "prompts", "rows")

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.rows: dict[object, int] = {}
        self.prompts: dict[object, slice] = {}

    def of(self, keys: Sequence[object]) -> torch.Tensor:
        """The rows of `keys`, which are in the order of theirs."""
        whole = len(keys) == len(self.logits)
        return self.logits if whole else self.logits[[self.rows[key] for key in keys]]


class ModelRunner:
    """One model on one device, with room for `num_blocks` blocks."""

    def __init__(
        self, checkpoint: Checkpoint, device: DeviceManager, num_blocks: int, block_size: int, length: int
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        self.device = device
        self.on_layer: Callable[[], object] = lambda: None
        """Called before each layer of a step, which may take seconds."""
        self._num_blocks, self._block_size, self._length = num_blocks, block_size, length
        self.load_weights(checkpoint)
        self.make_cache()

    def load_weights(self, checkpoint: Checkpoint) -> None:
        """ModelLoadError when they are not of the model that this runner was made for."""
        if checkpoint.config != self.config:
            raise ModelLoadError("The model's configuration has changed since the start.")
        self._check_weights()
        with torch.inference_mode():
            self.model = Decoder(
                checkpoint.config,
                checkpoint.weights,
                length=self._length,
                dtype=self.device.dtype,
                device=self.device.device,
                packed=self.device.packs,
            )

    def make_cache(self) -> None:
        """Room for keys and values. ModelLoadError when there is not so much memory."""
        self._check_memory(self._num_blocks, self._block_size)
        with torch.inference_mode():
            self.store = PagedStore(
                self.config, self._num_blocks, self._block_size, self.device.dtype, self.device.device
            )
        self.workspace = DecodeWorkspace(self.store, limit_bytes=self.store.size_bytes)

    def free_weights(self) -> None:
        """Give their memory back; nothing can be run until `load_weights`."""
        del self.model
        self.device.collect()

    def free_cache(self) -> None:
        """The same, of keys and values, until `make_cache`."""
        del self.workspace, self.store
        self.device.collect()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def run(self, decodes: Sequence[DecodeRow], chunks: Sequence[Chunk]) -> StepLogits:
        """One step. Keys of `decodes` and `chunks` say whose logits are whose."""
        with torch.inference_mode():
            rows = self.workspace.arrange(decodes) if decodes else []
            if rows is None:  # each alone, straight from the store
                rows, single = [], [_as_chunk(row) for row in decodes]
                chunks = [*single, *chunks]
            attention = StepAttention(self.store, self.workspace, rows, chunks)
            tokens, positions = self._tokens(rows, chunks)
            hidden = self.model(tokens, positions, attention, self.on_layer)
            return self._logits(hidden, rows, chunks)

    def cleanse(self, blocks: Iterable[int]) -> set[int]:
        """Numbers that are none become 0: masked, they would still spoil the sums of others. In which blocks
        there were any."""
        self.workspace.forget()
        with torch.inference_mode():
            return self.store.cleanse(blocks)

    def _tokens(
        self, rows: Sequence[DecodeRow], chunks: Sequence[Chunk]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = [row.token for row in rows]
        positions = [row.position for row in rows]
        for chunk in chunks:
            tokens += chunk.tokens
            positions += range(chunk.start, chunk.end)
        device = self.device.device
        return torch.tensor(tokens, device=device), torch.tensor(positions, device=device)

    def _logits(self, hidden: torch.Tensor, rows: Sequence[DecodeRow], chunks: Sequence[Chunk]) -> StepLogits:
        """The head is applied to what is asked for, which of a prompt is mostly its last token."""
        wanted, place = list(range(len(rows))), len(rows)
        answer = StepLogits(hidden)
        answer.rows = {row.key: number for number, row in enumerate(rows)}
        for chunk in chunks:
            last = place + len(chunk.tokens)
            if chunk.prompt_logits:
                answer.prompts[chunk.key] = slice(len(wanted), len(wanted) + last - place)
                wanted += range(place, last)
            elif chunk.samples:
                wanted.append(last - 1)
            if chunk.samples:
                answer.rows[chunk.key] = len(wanted) - 1
            place = last
        if len(wanted) < len(hidden):
            hidden = hidden[torch.tensor(wanted, dtype=torch.long, device=hidden.device)]
        answer.logits = self.model.logits(hidden)
        return answer

    def _check_weights(self) -> None:
        """Said before they are read."""
        needed, free = self.config.num_parameters * self.device.dtype.itemsize, self.device.free_bytes()
        if free is not None and needed > free:
            raise ModelLoadError(
                f"The weights take {needed >> 20} MiB in {self.device.info()['dtype']},"
                f" {free >> 20} MiB are free."
            )

    def _check_memory(self, num_blocks: int, block_size: int) -> None:
        """Said before it is taken, with the size that fits."""
        block = self.config.kv_bytes(self.device.dtype.itemsize) * block_size
        free = self.device.free_bytes()
        if free is not None and num_blocks * block > free - SPARE_BYTES:
            fits = max(0, free - SPARE_BYTES) // block
            raise ModelLoadError(
                f"{num_blocks} blocks of the KV cache take {num_blocks * block >> 20} MiB,"
                f" {free >> 20} MiB are free: num_blocks={fits} fits."
            )


def _as_chunk(row: DecodeRow) -> Chunk:
    return Chunk(row.key, [row.token], row.position, row.blocks, samples=True)
