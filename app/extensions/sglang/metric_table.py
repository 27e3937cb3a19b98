"""The families of SGLang's metrics that a simulation has numbers for: names, labels and buckets."""

from app.core.base.metrics.spec import Bounds

FIRST_TOKEN: Bounds = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10),
    *(20, 40, 60, 80, 100, 200, 400),
)
REQUEST_LATENCY: Bounds = (*FIRST_TOKEN, 600, 1200, 1800, 2400)
INTER_TOKEN: Bounds = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035),
    *(0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
QUEUE_TIME: Bounds = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20),
    *(30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900),
    *(1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
TOKENS: Bounds = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000),
    *(10_000, 12_500, 15_000, 17_500, 20_000, 22_500, 25_000, 27_500, 30_000, 35_000),
    *(40_000, 60_000, 80_000, 100_000, 200_000, 300_000, 400_000, 600_000, 800_000),
    *(1_000_000, 1_100_000),
)

COUNTERS = {
    "prompt_tokens_total": "Prompt tokens of finished requests.",
    "generation_tokens_total": "Generated tokens of finished requests.",
    "cached_tokens_total": "Prompt tokens found in the cache, by type of memory.",
    "num_requests_total": "Finished requests.",
    "num_so_requests_total": "Finished requests with structured output.",
    "num_aborted_requests_total": "Requests that were aborted.",
}
HISTOGRAMS: dict[str, tuple[str, Bounds]] = {
    "prompt_tokens_histogram": ("Prompt tokens of a request.", TOKENS),
    "uncached_prompt_tokens_histogram": ("Prompt tokens of a request that were computed.", TOKENS),
    "generation_tokens_histogram": ("Generated tokens of a request.", TOKENS),
    "time_to_first_token_seconds": ("Seconds from arrival to the first token.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("Seconds between two tokens.", INTER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Mean seconds between the tokens of a request.",
        INTER_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Seconds from arrival to the last token.", REQUEST_LATENCY),
    "queue_time_seconds": ("Seconds from arrival to the start of the prefill.", QUEUE_TIME),
}
GAUGES = {
    "num_running_reqs": "Running requests.",
    "num_queue_reqs": "Waiting requests.",
    "num_grammar_queue_reqs": "Requests that wait for a grammar; always 0.",
    "num_paused_reqs": "Requests paused by a weight update; always 0.",
    "gen_throughput": "Generated tokens per second, averaged over at least the last second.",
    "cache_hit_rate": "Share of the looked-up prompt tokens that were in the prefix cache.",
    "token_usage": "Used share of the KV cache.",
    "full_token_usage": "Used share of the KV cache for full attention.",
    "num_used_tokens": "Used tokens of the KV cache.",
    "kv_used_tokens": "Tokens of the KV cache that running requests hold.",
    "kv_available_tokens": "Tokens of the KV cache that no running request holds.",
    "utilization": "Always 0, because no latency target is set.",
    "max_total_num_tokens": "Capacity of the KV cache in tokens.",
    "page_size": "Number of tokens in a KV cache block.",
    "num_pages": "Number of KV cache blocks.",
    "context_len": "Context length in tokens.",
}
