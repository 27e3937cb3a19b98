"""Runs the model on a device: takes the token ids of a step, returns logits, keeps keys and values."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch

from app.llm.attention import ChunkRows, DecodeRow, DecodeWorkspace, PagedStore, StepAttention
from app.llm.config import Checkpoint, ModelConfig
from app.llm.decoder import Decoder, packing_works
from app.llm.errors import ModelLoadError

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DEVICES: Final = ("cuda", "mps", "cpu")

logger = logging.getLogger(__name__)


class DeviceManager:
    """`device` is auto, cuda, mps or cpu; an unavailable device becomes the CPU, with a warning.

    `dtype` None is float32 on a CPU and bfloat16 elsewhere. `info` returns the chosen device and dtype.
    """

    def __init__(self, device: str = "auto", dtype: str | None = None) -> None:
        self.device = torch.device(self.detect_device(device))
        if dtype is None or dtype == "auto":
            dtype = "float32" if self.device.type == "cpu" else "bfloat16"
        dtype = dtype.removeprefix("torch.")
        if dtype not in DTYPES:
            raise ModelLoadError(f"The dtype {dtype} is not supported, only {', '.join(DTYPES)}.")
        if dtype == "float16" and self.device.type == "cpu":
            raise ModelLoadError("float16 is not supported on a CPU: choose float32 or bfloat16.")
        self.dtype = DTYPES[dtype]
        self.packs = self.device.type == "cpu" and packing_works(self.dtype)
        """True when linear layers are packed for oneDNN."""

    @staticmethod
    def detect_device(device: str = "auto") -> str:
        """Returns `device` if available, else the CPU; the best device for auto."""
        counts = {
            "cuda": torch.cuda.device_count(),
            "mps": int(torch.backends.mps.is_available()),
            "cpu": 1,
        }
        if device == "auto":
            return next(name for name in DEVICES if counts[name])
        name, _, number = device.partition(":")
        if (number or "0").isdecimal() and int(number or 0) < counts.get(name, 0):
            return device
        logger.warning("the device %s is not available, using the CPU", device)
        return "cpu"

    def optimize_for_device(self, model: torch.nn.Module) -> torch.nn.Module:
        """Moves a torch module to the device and dtype."""
        return model.to(self.device, self.dtype)

    def free_bytes(self) -> int | None:
        """Returns the available memory; None if unknown."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                sizes = dict(line.split(":", 1) for line in file)
            return int(sizes["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return None

    def collect(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    def info(self) -> dict[str, object]:
        kinds = {"cuda": "nvidia_gpu", "mps": "apple_gpu", "cpu": "cpu"}
        return {
            "device": str(self.device),
            "device_type": kinds[self.device.type],
            "dtype": str(self.dtype).removeprefix("torch."),
            "packed_linears": self.packs,
            "num_threads": torch.get_num_threads(),
        }


SPARE_BYTES: Final = 64 << 20
"""Memory reserved for the tensors of a step."""


class Chunk(ChunkRows):
    """A prefill chunk; `samples` wants the logits of the next token, `prompt_logits` after each token."""

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
    """Logits of a step: `rows` by key for the next token, `prompts` by key after each token of a chunk."""

    __slots__ = ("logits", "prompts", "rows")

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.rows: dict[object, int] = {}
        self.prompts: dict[object, slice] = {}

    def of(self, keys: Sequence[object]) -> torch.Tensor:
        """Returns the rows of `keys`, which must be in the order of rows."""
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
        """Loads weights. Raises ModelLoadError for the weights of another model."""
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
        """Allocates keys and values. Raises ModelLoadError without enough memory."""
        self._check_memory(self._num_blocks, self._block_size)
        with torch.inference_mode():
            self.store = PagedStore(
                self.config, self._num_blocks, self._block_size, self.device.dtype, self.device.device
            )
        self.workspace = DecodeWorkspace(self.store, limit_bytes=self.store.size_bytes)

    def free_weights(self) -> None:
        """Frees the weights; `run` needs `load_weights` first."""
        del self.model
        self.device.collect()

    def free_cache(self) -> None:
        """Frees keys and values; `run` needs `make_cache` first."""
        del self.workspace, self.store
        self.device.collect()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def run(self, decodes: Sequence[DecodeRow], chunks: Sequence[Chunk]) -> StepLogits:
        """Runs one step, and returns logits by the keys of `decodes` and `chunks`."""
        with torch.inference_mode():
            rows = self.workspace.arrange(decodes) if decodes else []
            if rows is None:  # no memory: each decode is a chunk, from the store
                rows, single = [], [_as_chunk(row) for row in decodes]
                chunks = [*single, *chunks]
            attention = StepAttention(self.store, self.workspace, rows, chunks)
            tokens, positions = self._tokens(rows, chunks)
            hidden = self.model(tokens, positions, attention, self.on_layer)
            return self._logits(hidden, rows, chunks)

    def cleanse(self, blocks: Iterable[int]) -> set[int]:
        """Sets NaN and infinite numbers to 0, and returns their blocks.

        Even masked, such numbers would spoil the sums of other sequences.
        """
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
        """Applies the head to the requested tokens only: mostly the last one of a prompt."""
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
        """Raises ModelLoadError for weights that exceed the free memory, before they are read."""
        needed, free = self.config.num_parameters * self.device.dtype.itemsize, self.device.free_bytes()
        if free is not None and needed > free:
            raise ModelLoadError(
                f"The weights take {needed >> 20} MiB in {self.device.info()['dtype']},"
                f" {free >> 20} MiB are free."
            )

    def _check_memory(self, num_blocks: int, block_size: int) -> None:
        """Raises ModelLoadError, with the number of blocks that fits, before memory is allocated."""
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
