"""vllm:cache_config_info: the settings of the KV cache as labels of a gauge that is always 1."""

from __future__ import annotations

from collections.abc import Mapping

# vLLM's labels and defaults; "None" is how it prints a value that is not set.
DEFAULTS: Mapping[str, str] = {
    "_block_size_resolved": "True",
    "block_size": "16",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "effective_attention_block_size": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "None",
    "kv_cache_memory_bytes": "None",
    "kv_cache_size_tokens": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


def info_labels(cache_config: Mapping[str, str]) -> dict[str, str]:
    """Every label of the gauge but `engine`: vLLM's defaults with `cache_config` over them.

    Raises ValueError for a label that vLLM does not have.
    """
    if unknown := cache_config.keys() - DEFAULTS.keys():
        raise ValueError(f"not a label of vllm:cache_config_info: {', '.join(sorted(unknown))}")
    return {**DEFAULTS, **cache_config}
