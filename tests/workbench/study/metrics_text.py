"""Texts of /metrics with known counts."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.base.metrics.table import FIRST_TOKEN, INTER_TOKEN, REQUEST_LATENCY

TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
HISTOGRAMS = {
    "request_prompt_tokens": (TOKENS, 150.0),
    "request_generation_tokens": (TOKENS, 30.0),
    "time_to_first_token_seconds": (FIRST_TOKEN, 0.05),
    "request_time_per_output_token_seconds": (INTER_TOKEN, 0.012),
    "e2e_request_latency_seconds": (REQUEST_LATENCY, 0.4),
    "request_prefill_time_seconds": (REQUEST_LATENCY, 0.045),
}
"""Metric -> its bounds, and the value of every request."""


def metrics_text(
    requests: int,
    *,
    model: str = "m",
    running: int = 0,
    waiting: int = 0,
    started_s: float = 1000.0,
    extra: Mapping[str, object] | None = None,
) -> str:
    """The metrics of a server after `requests` equal requests."""
    labels = f'engine="0",model_name="{model}"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} {running}",
        f"vllm:num_requests_waiting{{{labels}}} {waiting}",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
        f"vllm:prompt_tokens_total{{{labels}}} {150 * requests}",
        f"vllm:prompt_tokens_created{{{labels}}} {started_s}",
        f"vllm:generation_tokens_total{{{labels}}} {30 * requests}",
        f"vllm:num_preemptions_total{{{labels}}} 0",
        f"vllm:prefix_cache_queries_total{{{labels}}} {150 * requests}",
        f"vllm:prefix_cache_hits_total{{{labels}}} {48 * requests}",
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {requests}',
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="2000",engine="0"} 1',
    ]
    for metric, (bounds, value) in HISTOGRAMS.items():
        for bound in bounds:
            count = requests if value <= bound else 0
            lines.append(f'vllm:{metric}_bucket{{{labels},le="{bound}"}} {count}')
        lines.append(f'vllm:{metric}_bucket{{{labels},le="+Inf"}} {requests}')
        lines.append(f"vllm:{metric}_count{{{labels}}} {requests}")
        lines.append(f"vllm:{metric}_sum{{{labels}}} {value * requests}")
    lines += [f"{name} {number}" for name, number in (extra or {}).items()]
    return "\n".join(lines) + "\n"
