"""The load of each data-parallel rank, as SGLang's routes and metrics report it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from app.core.engine.client import EngineClient
    from app.core.extensions import ServerParts

RATE_WINDOW_S = 1.0
"""Minimum time between two readings of the generated tokens, from which throughput follows."""


class MemoryLoad(Struct):
    """Memory of a rank. The simulation has no weights, so only the capacity is known."""

    weight_gb: float
    kv_cache_gb: float
    graph_gb: float
    token_capacity: int


class QueueLoad(Struct):
    """Requests of a rank that do not run, by the queue."""

    waiting: int
    grammar: int = 0
    paused: int = 0
    retracted: int = 0
    prealloc_ready: int = 0


class DisaggregationLoad(Struct):
    """Queues of a rank for disaggregated serving, which this dialect does not simulate."""

    mode: str = "null"
    prefill_bootstrap_queue_reqs: int = 0
    prefill_inflight_queue_reqs: int = 0
    decode_prealloc_queue_reqs: int = 0
    decode_transfer_queue_reqs: int = 0
    decode_retracted_queue_reqs: int = 0
    kv_transfer_speed_gb_s: float = 0.0
    kv_transfer_latency_ms: float = 0.0


class RankLoad(Struct):
    """The load of one rank, with SGLang's names. Tokens are counts of the KV cache."""

    timestamp: float
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_waiting_uncached_tokens: int
    num_used_tokens: int
    num_total_tokens: int
    """Tokens of running and of waiting requests."""
    num_active_tokens: int
    num_prealloc_ready_tokens: int
    max_total_num_tokens: int
    max_running_requests: int
    token_usage: float
    gen_throughput: float
    cache_hit_rate: float
    utilization: float
    total_prefill_uncached_tokens: int
    total_prefill_busy_us: int
    decode_moments: list[float] | None
    memory: MemoryLoad
    disaggregation: DisaggregationLoad
    queues: QueueLoad


class ThroughputMeter:
    """Computes tokens per second from a counter, over windows of at least a second."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._start_tokens = 0.0
        self._rate = 0.0

    def read(self, tokens: float) -> float:
        """Returns the rate of the last window; `tokens` is the counter now."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._start_s
        if elapsed_s >= RATE_WINDOW_S:
            self._rate = (tokens - self._start_tokens) / elapsed_s
            self._start_s = now_s
            self._start_tokens = tokens
        return self._rate


class LoadReader:
    """Reads the loads of all ranks of this port from their engines."""

    def __init__(self, parts: ServerParts) -> None:
        settings = parts.settings
        self._engine = parts.engine
        self._slots = settings.scheduling.max_num_seqs
        self.max_total_tokens = settings.kvcache.kv_cache_size * settings.kvcache.block_size
        self._meters = [ThroughputMeter() for _ in parts.engine.ranks]

    def loads(self) -> list[RankLoad]:
        """Returns the load of each rank, in order."""
        loads = []
        for rank, engine in enumerate(self._engine.ranks):
            loads.append(self._load(rank, engine))
        return loads

    def _load(self, rank: int, engine: EngineClient) -> RankLoad:
        running_tokens = 0
        waiting_tokens = 0
        for sequence in engine.sequences():
            tokens = len(sequence.request.prompt_ids) + sequence.tokens
            if sequence.scheduled_s is None:
                waiting_tokens += tokens
            else:
                running_tokens += tokens
        total_tokens = running_tokens + waiting_tokens
        figures = engine.recorder.figures()
        hit_rate = 0.0
        if figures.queries:
            hit_rate = figures.hits / figures.queries
        return RankLoad(
            timestamp=time.time(),
            dp_rank=rank,
            num_running_reqs=engine.running,
            num_waiting_reqs=engine.waiting,
            num_waiting_uncached_tokens=waiting_tokens,
            num_used_tokens=running_tokens,
            num_total_tokens=total_tokens,
            num_active_tokens=total_tokens,
            num_prealloc_ready_tokens=0,
            max_total_num_tokens=self.max_total_tokens,
            max_running_requests=self._slots,
            token_usage=min(1.0, running_tokens / self.max_total_tokens),
            gen_throughput=self._meters[rank].read(figures.generated),
            cache_hit_rate=hit_rate,
            utilization=0.0,
            total_prefill_uncached_tokens=int(figures.prompt - figures.cached),
            total_prefill_busy_us=0,
            decode_moments=None,
            memory=MemoryLoad(0.0, 0.0, 0.0, self.max_total_tokens),
            disaggregation=DisaggregationLoad(),
            queues=QueueLoad(engine.waiting),
        )


def short_loads(loads: ListOf[RankLoad]) -> list[dict[str, int]]:
    """Returns the loads in the form of /get_load, which routers add up."""
    return [
        {
            "dp_rank": load.dp_rank,
            "num_reqs": load.num_running_reqs + load.num_waiting_reqs,
            "num_waiting_reqs": load.num_waiting_reqs,
            "num_tokens": load.num_total_tokens,
        }
        for load in loads
    ]
