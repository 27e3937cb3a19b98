"""The memory of the devices of an engine: weights, memory of the engine, and KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from app.extensions.costs.memory import reserved_bytes, state_bytes, token_bytes
from config.declaration import ConfigError

if TYPE_CHECKING:
    from app.core.engine.profile import EngineLimits
    from app.extensions.costs.drafters import Drafter
    from app.extensions.costs.engine_options import EngineOptions
    from app.extensions.costs.shapes import CostShape
    from app.extensions.costs.storage import StorageFormat
    from app.extensions.costs.version_rules import MemoryUse
    from vllm_facts.accelerator import DeviceMemory


class MemoryBudget(Struct, frozen=True, kw_only=True):
    """Bytes of one device."""

    weight_bytes: float
    reserved_bytes: float
    """Activation, CUDA graphs, and memory outside PyTorch."""
    free_bytes: float
    """Rest for tokens, within `gpu-memory-utilization`; less than 0 if there is none."""
    cache_bytes: float
    """Rest for tokens and for states."""
    token_bytes: float
    """Of a token in the KV cache."""
    blocks: int
    """Of the KV cache, whose first block is never used."""


class EngineMemory:
    """The memory of a model's devices."""

    def __init__(
        self,
        shape: CostShape,
        storage: StorageFormat,
        *,
        device: DeviceMemory,
        options: EngineOptions,
        use: MemoryUse,
        drafter: Drafter | None = None,
    ) -> None:
        self._drafter = drafter
        self._shape = shape
        self._storage = storage
        self._device = device
        self._options = options
        self._use = use

    def budget(self, limits: EngineLimits, cache_bytes: int) -> MemoryBudget:
        """Returns the memory of a device; a number in the KV cache has `cache_bytes`."""
        shape = self._shape
        options = self._options
        sharers = options.tensor_parallel_size * options.pipeline_parallel_size
        weight_bytes = self._storage.shared_bytes(shape) / sharers
        weight_bytes += self._storage.expert_bytes(shape) / options.devices
        weight_bytes += self._storage.other_bytes(shape) / sharers
        reserved = reserved_bytes(shape, options.tensor_parallel_size, limits, self._use)
        free_bytes = self._device.memory * self._use.utilization - weight_bytes - reserved
        cached_bytes = token_bytes(
            shape, options.tensor_parallel_size, cache_bytes, options.pipeline_parallel_size
        )
        drafter = self._drafter
        if drafter is not None and drafter.shape is not None:
            free_bytes -= drafter.weight_bytes / sharers
            cached_bytes += token_bytes(drafter.shape, options.tensor_parallel_size, cache_bytes)
        rest_bytes = free_bytes
        if shape.recurrent is not None:
            # Each running sequence has a state; half of the memory is for tokens at least.
            free_bytes -= min(free_bytes / 2, limits.max_num_seqs * state_bytes(shape, sharers))
        return MemoryBudget(
            weight_bytes=weight_bytes,
            reserved_bytes=reserved,
            free_bytes=free_bytes,
            cache_bytes=rest_bytes,
            token_bytes=cached_bytes,
            blocks=int(free_bytes / (cached_bytes * limits.block_size)),
        )

    def fill_in(self, limits: EngineLimits, cache_bytes: int, origin: str) -> EngineLimits:
        """Returns the limits of a rank with its blocks, and the most tokens of a request.

        Raises:
            ConfigError: The KV cache has no block; the message begins with `origin`.
        """
        budget = self.budget(limits, cache_bytes)
        if budget.blocks < 2:
            raise ConfigError(
                f"{origin}: weights of {budget.weight_bytes / 1e9:.0f} GB per device leave no room"
                f" for a KV cache in {self._use.utilization:.0%} of {self._device.name}'s memory"
                f" with max-num-batched-tokens {limits.max_num_batched_tokens} and max-num-seqs"
                f" {limits.max_num_seqs}; use a larger tensor-parallel-size"
            )
        cache_tokens = (budget.blocks - 1) * limits.block_size
        return replace(
            limits,
            num_gpu_blocks=budget.blocks,
            max_model_len=min(self._shape.max_position_embeddings, cache_tokens),
        )
