"""The figures of a simulated load: latencies, rates, use of the cache."""

from __future__ import annotations

from msgspec import Struct

from app.fidelity.figures import four
from app.fidelity.simulation import Outcome, Plan
from app.load.trace import Load

STATISTICS = ("mean", "p50", "p90", "p99")
LATENCIES = ("ttft", "itl", "e2e")


class Spread(Struct, frozen=True):
    """Seconds: the mean, and quantiles as `sorted[int(n * p)]`; None of nothing."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Use(Struct, frozen=True):
    """Over the time from the first request until the last token."""

    mean: float
    peak: float


class Summary(Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    profile: str
    requests: int
    steps: int
    preemptions: int
    ttft_s: Spread
    """From sending a request to its first token."""
    itl_s: Spread
    """(last - first) / (output - 1) of each request with more than one token."""
    e2e_s: Spread
    """From sending a request to its last token."""
    duration_s: float
    """From the first request until the last token."""
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """Of prompts: those that other requests had left in the cache."""
    kv_cache_usage: Use
    """Shares, from 0 to 1; the mean is that of all pods, the peak that of any."""
    running: Use
    """Sequences in the steps of a pod."""
    requests_per_pod: tuple[int, ...]

    def latency(self, name: str) -> Spread:
        """One of `LATENCIES`."""
        spread: Spread = getattr(self, f"{name}_s")
        return spread


def summarize(load: Load, plan: Plan, outcome: Outcome, profile: str) -> Summary:
    """The figures of what became of `load`."""
    send_s, first_s, last_s = outcome.send_s, outcome.first_s, outcome.last_s
    begin_s, end_s = min(send_s), max(last_s)
    duration_s = end_s - begin_s
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    tokens_in, tokens_out = sum(load.input_tokens), sum(load.output_tokens)
    per_pod = [0] * plan.pods
    for pod in outcome.pod:
        per_pod[pod] += 1
    timeline, capacity = outcome.timeline, plan.profile.engine.num_gpu_blocks - 1
    pod_seconds_share = per_s / plan.pods
    return Summary(
        profile=profile,
        requests=len(load),
        steps=outcome.steps,
        preemptions=outcome.preemptions,
        ttft_s=spread([first - send for send, first in zip(send_s, first_s, strict=True)]),
        itl_s=spread(
            [
                (last - first) / (tokens - 1)
                for first, last, tokens in zip(first_s, last_s, load.output_tokens, strict=True)
                if tokens > 1
            ]
        ),
        e2e_s=spread([last - send for send, last in zip(send_s, last_s, strict=True)]),
        duration_s=duration_s,
        requests_per_s=len(load) * per_s,
        input_tokens_per_s=tokens_in * per_s,
        output_tokens_per_s=tokens_out * per_s,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_tokens=outcome.cached_tokens,
        kv_cache_usage=Use(
            sum(timeline.blocks) * pod_seconds_share / capacity, timeline.most_blocks / capacity
        ),
        running=Use(sum(timeline.sequences) * pod_seconds_share, timeline.most_sequences),
        requests_per_pod=tuple(per_pod),
    )


def spread(values: list[float]) -> Spread:
    """Of `values`."""
    if not values:
        return Spread(None, None, None, None)
    return Spread(*four(values))
