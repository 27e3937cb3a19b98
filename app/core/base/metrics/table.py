"""The table of an engine's families: names, labels, label values and buckets of vLLM 0.32."""

from collections.abc import Mapping

from app.core.base.metrics.spec import Spec, counter, gauge, histogram

REQUEST_LATENCY = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
INTER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SLEEP_OPERATION = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)

FINISHED = ("stop", "length", "abort", "error", "repetition")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
SLEEP_OPERATIONS = ("sleep", "release_kv_cache_memory", "wake")

UNSET_LABELS = (
    "cache_hit_alignment_tokens",
    "effective_attention_block_size",
    "hash_block_size",
    "kv_cache_layout",
    "kv_cache_max_concurrency",
    "kv_cache_memory_bytes",
    "kv_cache_size_tokens",
    "kv_offloading_size",
    "mamba_block_size",
    "mamba_page_size_padded",
    "num_cpu_blocks",
    "num_gpu_blocks",
    "num_gpu_blocks_override",
    "prefix_match_unit",
    "skip_page_size_padded",
    "sliding_window",
)
"""Labels of vllm:cache_config_info whose values are not set; vLLM prints "None"."""
CACHE_CONFIG: Mapping[str, str] = dict.fromkeys(UNSET_LABELS, "None") | {
    "_block_size_resolved": "True",
    "block_size": "16",
    "cache_dtype": "auto",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": "False",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "auto",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
"""Labels of vllm:cache_config_info, with vLLM's defaults."""

TABLE: tuple[Spec, ...] = (
    counter("estimated_flops_per_gpu_total", "Estimated floating point operations, per GPU."),
    counter("estimated_read_bytes_per_gpu_total", "Estimated bytes read from memory, per GPU."),
    counter("estimated_write_bytes_per_gpu_total", "Estimated bytes written to memory, per GPU."),
    gauge("num_requests_running", "Requests in the running batch."),
    gauge("num_requests_waiting", "Requests that wait for the batch."),
    gauge(
        "num_requests_waiting_by_reason",
        "Waiting requests by cause: capacity = the batch is full, deferred = a passing constraint.",
        reason=("capacity", "deferred"),
    ),
    gauge(
        "engine_sleep_state",
        "1 for the current state; weights_offloaded is sleep level 1, discard_all level 2.",
        sleep_state=SLEEP_STATES,
    ),
    gauge("kv_cache_usage_perc", "Used share of the KV cache, from 0 to 1."),
    gauge(
        "gpu_cache_usage_perc",
        "Alias of vllm:kv_cache_usage_perc.",
        alias_of="vllm:kv_cache_usage_perc",
    ),
    counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
    counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
    counter("external_prefix_cache_queries_total", "Prompt tokens looked up in external caches."),
    counter("external_prefix_cache_hits_total", "Prompt tokens found in external caches."),
    counter("mm_cache_queries_total", "Images and other media looked up in the media cache."),
    counter("mm_cache_hits_total", "Images and other media found in the media cache."),
    counter("num_preemptions_total", "Preemptions of running requests."),
    counter("prompt_tokens_total", "Prompt tokens of all prefills, cached tokens included."),
    counter(
        "prompt_tokens_by_source_total",
        "Prompt tokens by where their KV came from.",
        source=PROMPT_SOURCES,
    ),
    counter("prompt_tokens_cached_total", "Prompt tokens that needed no prefill."),
    counter(
        "prompt_tokens_cached_by_source_total",
        "Cached prompt tokens by the tier that held them.",
        source=CACHE_TIERS,
    ),
    counter("generation_tokens_total", "Tokens generated."),
    counter(
        "request_success_total",
        "Finished requests by reason; requests that clients abandoned do not count.",
        finished_reason=FINISHED,
    ),
    counter(
        "admission_rejections_total",
        "Requests rejected by a limit of the waiting queue.",
        base=("model_name",),
        reason=REJECTIONS,
    ),
    histogram("request_prompt_tokens", "Prompt tokens per request."),
    histogram("request_generation_tokens", "Generated tokens per request."),
    histogram("iteration_tokens_total", "Tokens computed per engine step.", ITERATION_TOKENS),
    histogram(
        "request_max_num_generation_tokens", "Generated tokens of each request's longest choice."
    ),
    histogram(
        "max_num_generation_tokens",
        "Alias of vllm:request_max_num_generation_tokens.",
        alias_of="vllm:request_max_num_generation_tokens",
    ),
    histogram("request_params_n", "Requested choices per request (n).", (1, 2, 5, 10, 20)),
    histogram("request_params_max_tokens", "Token limit in force per request (max_tokens)."),
    histogram("time_to_first_token_seconds", "From arrival to first token.", FIRST_TOKEN),
    histogram("inter_token_latency_seconds", "Between two outputs of a request.", INTER_TOKEN),
    histogram(
        "time_per_output_token_seconds",
        "Alias of vllm:inter_token_latency_seconds.",
        INTER_TOKEN,
        alias_of="vllm:inter_token_latency_seconds",
    ),
    histogram(
        "request_time_per_output_token_seconds",
        "Mean per token after the first, per request.",
        INTER_TOKEN,
    ),
    histogram("e2e_request_latency_seconds", "From arrival to end of a request.", REQUEST_LATENCY),
    histogram(
        "request_queue_time_seconds", "Time in the waiting queue, per request.", REQUEST_LATENCY
    ),
    histogram(
        "request_inference_time_seconds",
        "From leaving the waiting queue to last token.",
        REQUEST_LATENCY,
    ),
    histogram(
        "request_prefill_time_seconds",
        "From leaving the waiting queue to first token.",
        REQUEST_LATENCY,
    ),
    histogram("request_decode_time_seconds", "From first token to last token.", REQUEST_LATENCY),
    histogram("request_num_preemptions", "Preemptions per request.", (1, 2, 3, 4, 5, 10, 20)),
    histogram(
        "request_prefill_kv_computed_tokens", "Prompt tokens per request that were not cached."
    ),
    counter(
        "tool_call_parser_invocations_total",
        "Runs of the tool call parser: one per whole choice, one per delta of a stream.",
        base=("model_name",),
        mode=("streaming", "non_streaming"),
        outcome=("tool_call", "no_tool_call"),
        request_type=("chat_completions", "responses", "other"),
    ),
    histogram(
        "sleep_mode_operation_duration_seconds",
        "Duration of sleep and wake operations.",
        SLEEP_OPERATION,
        base=(),
        operation=SLEEP_OPERATIONS,
    ),
    gauge(
        "sleep_mode_operations_in_flight",
        "Sleep and wake operations in progress.",
        base=(),
        operation=SLEEP_OPERATIONS,
    ),
)

LATE = (
    Spec(
        "understudy_late_requests_total",
        "counter",
        "Requests that reached the scheduler late because reading them took long.",
    ),
    Spec("understudy_late_seconds_total", "counter", "Total delay of late requests."),
)
ABORTED = (
    Spec(
        "understudy_aborted_requests_total",
        "counter",
        "Sequences that clients abandoned, or that were aborted by ID.",
    ),
)
