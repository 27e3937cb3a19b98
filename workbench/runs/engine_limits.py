"""Checks of an engine's limits."""

from config import ConfigError
from workbench.engine.steps import EngineLimits


def check_engine_limits(limits: EngineLimits, origin: str) -> None:
    """Checks that an engine can work with `limits`.

    Raises:
        ConfigError: The limits contradict each other; the message begins with `origin`.
    """
    max_tokens = limits.max_model_len or 1
    needed_blocks = -(-max_tokens // limits.block_size) + 1
    budget = f"max-num-batched-tokens {limits.max_num_batched_tokens} must not be less than"
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        raise ConfigError(
            f"{origin}: {budget} max-num-seqs {limits.max_num_seqs}, because some sequences"
            " would never get a token"
        )
    if limits.num_gpu_blocks < needed_blocks:
        fitting_tokens = (limits.num_gpu_blocks - 1) * limits.block_size
        raise ConfigError(
            f"{origin}: max-model-len {max_tokens} does not fit in the KV cache of"
            f" {fitting_tokens} tokens; use --max-model-len {fitting_tokens}, or blocks for more"
            " (a larger tensor-parallel-size, or kv-cache-dtype fp8)"
        )
    if not limits.enable_chunked_prefill and limits.max_num_batched_tokens < max_tokens:
        raise ConfigError(f"{origin}: without chunked prefill, {budget} max-model-len {max_tokens}")


def max_request_tokens(limits: EngineLimits) -> int:
    """Returns the most tokens, input and output together, that a request may have."""
    max_tokens = (limits.num_gpu_blocks - 1) * limits.block_size
    if not limits.enable_chunked_prefill:
        max_tokens = min(max_tokens, limits.max_num_batched_tokens)
    if limits.max_model_len is None:
        return max_tokens
    return min(max_tokens, limits.max_model_len)
