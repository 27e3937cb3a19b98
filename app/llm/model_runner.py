"""Runs the model on a device:

takes the token ids of a step, returns logits, keeps keys and values.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Listed
from typing import Final, NamedTuple

import torch

from app.base.cores import core_wait_s, usable_cores
from app.llm.attention import Chunk, PagedStore, StepAttention
from app.llm.batch_invariant import tile_linears
from app.llm.config import Checkpoint, ModelConfig
from app.llm.decoder import Builder, Decoder, packing_works
from app.llm.errors import ModelLoadError
from app.llm.kernels import use_threads
from app.llm.threads import ThreadGovernor

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}
"""Types of numbers that are computed with; those of weights but for int8."""
DEVICES: Final = ("cuda", "mps", "cpu")

logger = logging.getLogger(__name__)


class DeviceManager:
    """`device` is auto, cuda, mps or cpu; an unavailable device becomes the CPU, with a warning.

    `dtype` None is float32 on a CPU and bfloat16 elsewhere. `info` returns the chosen device and
    dtype. `num_threads` 0 lets `governor` try counts on a CPU, unless OMP_NUM_THREADS is set or
    `is_fixed`.
    """

    def __init__(
        self,
        device: str = "auto",
        dtype: str | None = None,
        num_threads: int = 0,
        is_fixed: bool = False,
    ) -> None:
        self.device = torch.device(self.detect_device(device))
        if num_threads:
            torch.set_num_threads(num_threads)
        if num_threads or is_fixed or self.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
            self.governor = ThreadGovernor(torch.get_num_threads())
        else:
            cores = usable_cores()
            self.governor = ThreadGovernor(cores, first=round(cores - os.getloadavg()[0]))
        if dtype is None or dtype == "auto":
            dtype = "float32" if self.device.type == "cpu" else "bfloat16"
        dtype = dtype.removeprefix("torch.")
        if dtype not in DTYPES:
            raise ModelLoadError(f"The dtype {dtype} is not supported, only {', '.join(DTYPES)}.")
        if dtype == "float16" and self.device.type == "cpu":
            raise ModelLoadError("float16 is not supported on a CPU: choose float32 or bfloat16.")
        self.int8 = dtype == "int8"
        if self.int8 and self.device.type != "cpu":
            raise ModelLoadError(
                f"int8 is for CPUs, not for {self.device.type}: choose bfloat16 or float32."
            )
        self.dtype = DTYPES[dtype]
        self.packs = self.device.type == "cpu" and not self.int8 and packing_works(self.dtype)
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
        return model.to(self.device, self.dtype)

    def use_threads(self, kind: int) -> None:
        """Sets the threads of the caller's next step, which is of this kind."""
        use_threads(count := self.governor.threads(kind))
        if count != torch.get_num_threads():
            torch.set_num_threads(count)

    def waited_s(self) -> float:
        """Returns the time that threads waited for a core; 0 with one thread, which waits for no
        other.
        """
        return core_wait_s() if torch.get_num_threads() > 1 else 0.0

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

    def info(self) -> dict[str, object]:
        kinds = {"cuda": "nvidia_gpu", "mps": "apple_gpu", "cpu": "cpu"}
        return {
            "device": str(self.device),
            "device_type": kinds[self.device.type],
            "dtype": "int8" if self.int8 else str(self.dtype).removeprefix("torch."),
            "packed_linears": self.packs,
            "num_threads": torch.get_num_threads(),
        }


SPARE_BYTES: Final = 64 << 20
"""Memory reserved for the tensors of a step."""


class StepLogits(NamedTuple):
    """Logits of the next token of each chunk in `sampled`, and after each token of `prompts`.

    A chunk with drafts has several rows: first for its next token, then for the token after each
    draft.
    """

    sampled: list[Chunk]
    next_token: torch.Tensor
    prompts: list[tuple[Chunk, torch.Tensor]]


class ModelRunner:
    """One model on one device, with room for `num_blocks` blocks."""

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
            raise ModelLoadError(f"batch_invariant is for CPUs, not for {device.device.type}.")
        self._num_blocks, self._block_size, self._length = num_blocks, block_size, length
        self._batch_invariant = batch_invariant
        self.load_weights(checkpoint)
        self.make_cache()

    def load_weights(self, checkpoint: Checkpoint) -> None:
        """Loads weights.

        Raises ModelLoadError for another model's, and where they exceed the free memory.
        """
        config, device = self.config, self.device
        if checkpoint.config != config:
            raise ModelLoadError("The model's configuration has changed since the start.")
        itemsize = 1 if device.int8 else device.dtype.itemsize
        needed, free = config.num_parameters * itemsize, device.free_bytes()
        if free is not None and needed > free:
            raise ModelLoadError(
                f"The weights take {needed >> 20} MiB in {device.info()['dtype']}, {free >> 20} MiB are free."
            )
        with torch.inference_mode():
            build = Builder(checkpoint, device.dtype, device.device, device.packs, device.int8)
            self.model = Decoder(build, self._length)
            if self._batch_invariant:
                tile_linears(self.model)

    def make_cache(self) -> None:
        """Allocates keys and values. Raises ModelLoadError, with the number of blocks that fits."""
        config, device, blocks = self.config, self.device, self._num_blocks
        dtype = torch.float32 if device.device.type == "cpu" else device.dtype
        size = 2 * config.num_layers * config.kv_size * dtype.itemsize * self._block_size
        free = device.free_bytes()
        if free is not None and blocks * size > free - SPARE_BYTES:
            raise ModelLoadError(
                f"{blocks} blocks of the KV cache take {blocks * size >> 20} MiB, {free >> 20} MiB are free:"
                f" num_blocks={max(0, free - SPARE_BYTES) // size} fits."
            )
        with torch.inference_mode():
            self.store = PagedStore(config, blocks, self._block_size, dtype, device.device)

    def free(self, parts: Collection[str]) -> None:
        """Frees "weights" and "kv_cache"; `run` needs `load_weights` and `make_cache` first."""
        if "weights" in parts:
            del self.model
        if "kv_cache" in parts:
            del self.store
        gc.collect()
        if (device := self.device.device).type != "cpu":
            torch.get_device_module(device).empty_cache()

    def run(
        self, decodes: list[Chunk], chunks: list[Chunk], is_late: Callable[[float], bool]
    ) -> StepLogits:
        """Runs one step. `is_late` is as for `Decoder`; the chunk leaves `chunks`."""
        with torch.inference_mode():
            parts = [*decodes, *chunks]
            one_by_one = parts if self._batch_invariant else decodes
            attention = StepAttention(
                self.store, one_by_one, [] if self._batch_invariant else chunks
            )
            tokens = [token for it in parts for token in it.tokens]
            positions = [place for it in parts for place in range(it.start, it.end)]
            ids, places = (
                torch.tensor(its, device=self.device.device) for its in (tokens, positions)
            )
            return self._logits(self.model(ids, places, attention, is_late), [*decodes, *chunks])

    def _logits(self, hidden: torch.Tensor, chunks: Listed[Chunk]) -> StepLogits:
        """Applies the head to the requested tokens only: mostly the last one of a prompt."""
        sampled, places, prompts, place = list[Chunk](), list[int](), [], 0
        for chunk in chunks:
            last = place + len(chunk.tokens)
            if chunk.prompt_logits:
                prompts.append((chunk, self.model.logits(hidden[place:last])))
            if chunk.samples:
                sampled.append(chunk)
                places += range(last - 1 - chunk.drafts, last)
            place = last
        if len(places) < len(hidden):
            hidden = hidden[torch.tensor(places, dtype=torch.long, device=hidden.device)]
        return StepLogits(sampled, self.model.logits(hidden), prompts)
