"""What an engine can do at all, as vLLM has it: checked before anything is simulated."""

from __future__ import annotations

from app.load.trace import Load
from config import ConfigError
from config.profile import EngineLimits


def check_engine(at: EngineLimits, origin: str) -> None:
    """ConfigError, which begins with `origin`, unless an engine of these limits can do its work."""
    if at.max_num_batched_tokens < at.max_num_seqs:
        raise ConfigError(
            f"{origin}: max-num-batched-tokens {at.max_num_batched_tokens} must not be less than "
            f"max-num-seqs {at.max_num_seqs}, or some sequences would never get a token"
        )
    if at.max_model_len is None:
        return
    blocks = -(-at.max_model_len // at.block_size) + 1
    if at.num_gpu_blocks < blocks:
        raise ConfigError(
            f"{origin}: {at.num_gpu_blocks} blocks of {at.block_size} tokens must hold a prompt of "
            f"max-model-len {at.max_model_len}, and the null block: {blocks} do"
        )
    if not at.enable_chunked_prefill and at.max_num_batched_tokens < at.max_model_len:
        raise ConfigError(
            f"{origin}: without chunked prefill max-num-batched-tokens {at.max_num_batched_tokens} must not "
            f"be less than max-model-len {at.max_model_len}"
        )


def longest_tokens(at: EngineLimits) -> int:
    """Most tokens that a request may have, prompt and answer."""
    longest = (at.num_gpu_blocks - 1) * at.block_size
    if not at.enable_chunked_prefill:
        longest = min(longest, at.max_num_batched_tokens)
    return longest if at.max_model_len is None else min(longest, at.max_model_len)


def check_load(load: Load, at: EngineLimits) -> None:
    """ConfigError for the first request that the engine could never finish."""
    longest = longest_tokens(at)
    for number, (tokens_in, tokens_out) in enumerate(zip(load.input_tokens, load.output_tokens, strict=True)):
        if tokens_in + tokens_out > longest:
            rule = "max-model-len" if longest == at.max_model_len else "what cache and budget hold"
            raise ConfigError(
                f"{load.row(number)}: input_tokens {tokens_in} and output_tokens {tokens_out} together must "
                f"not exceed {rule}, {longest} tokens"
            )
