"""One trace through a server with tiers and through `simulate`, both on the virtual clock.

Both decide by the same code what a prompt loads and stores. One request at a time, hits and
transfers are equal; with concurrent requests they agree within 1 %. The server's timers run up to
0.8 ms early: where transfers wait for each other without end, runs differ by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.kv_offload.engines import (
    BANDWIDTH,
    BLOCK_BYTES,
    BLOCK_SIZE,
    PROFILE,
    START_S,
    TieredEngine,
)
from workbench.load.loads import LoadTrace
from workbench.load.progress import ignore_progress
from workbench.runs.kv_tiers import KvTier, TierRules
from workbench.runs.simulation import Simulation, SimulationPlan
from workbench.runs.tiered_pod import TieredPod

GROUPS = 14
PAGE_BYTES = 1_003_520
"""Room that a block takes in a tier: `BLOCK_BYTES` in whole pages of 4,096 bytes."""
DISK_BANDWIDTH = 5e6
BLOCKS = 40
REQUESTS = 150
BURST_GAP_S = 0.013

VARIANTS = pytest.mark.parametrize(
    "options",
    [
        {"chunks": 60},
        {"chunks": 60, "policy": "arc"},
        {"chunks": 60, "store_threshold": 2},
        {"chunks": 30, "policy": "arc", "disk_chunks": 90, "disk_bandwidth": DISK_BANDWIDTH},
    ],
    ids=["lru", "arc", "threshold", "disk"],
)


@dataclass
class Ask:
    """A request of the trace; its prompt begins as those of its group."""

    at_s: float
    group: int
    prefix_tokens: int
    prompt_tokens: int
    output_tokens: int

    def prompt(self, number: int) -> list[int]:
        """Returns the IDs of the prompt of request `number`."""
        shared = [1_000 * self.group + place for place in range(self.prefix_tokens)]
        own = self.prompt_tokens - self.prefix_tokens
        return [*shared, *(1_000_000 + 1_000 * number + place for place in range(own))]


@dataclass
class Seen:
    """What a run loaded, stored and found."""

    cached_tokens: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    loaded_bytes: float = 0.0
    stored_bytes: float = 0.0


def draw(seed: int, *, gap_s: float, burst: int = 1) -> list[Ask]:
    """Returns a trace whose requests arrive in bursts of `burst`, `gap_s` apart on average."""
    random = Random(seed)
    asks = []
    at_s = 0.0
    for number in range(1, REQUESTS + 1):
        group = min(GROUPS - 1, int(random.expovariate(0.2)))
        prefix_tokens = BLOCK_SIZE * (2 + group % 6)
        prompt_tokens = prefix_tokens + random.randint(1, 40)
        asks.append(Ask(at_s, group, prefix_tokens, prompt_tokens, random.randint(1, 30)))
        at_s += gap_s * random.uniform(0.5, 1.5) if number % burst == 0 else BURST_GAP_S
    return asks


def serve(asks: Sequence[Ask], options: dict[str, Any]) -> Seen:
    """Plays the trace on the server's engine."""
    tiered = TieredEngine(BLOCKS, **options)
    for number, ask in enumerate(asks):
        tiered.clock.advance(START_S + ask.at_s - tiered.clock.now())
        tiered.submit(str(number), ask.prompt(number), ask.output_tokens)
    tiered.clock.advance(600)
    return Seen(
        cached_tokens=[tiered.cached_tokens(str(number)) for number in range(len(asks))],
        ttft_s=[tiered.first_token_s(str(number)) - ask.at_s for number, ask in enumerate(asks)],
        loaded_bytes=tiered.metric("kv_offload_load_bytes_total"),
        stored_bytes=tiered.metric("kv_offload_store_bytes_total"),
    )


def simulate(asks: Sequence[Ask], options: dict[str, Any]) -> Seen:
    """Plays the trace on a pod of `simulate`."""
    load = LoadTrace("trace", node_tokens=1_000)
    for ask in asks:
        load.arrival_s.append(START_S + ask.at_s)
        load.input_tokens.append(ask.prompt_tokens)
        load.output_tokens.append(ask.output_tokens)
        load.group.append(ask.group)
        load.prefix_tokens.append(ask.prefix_tokens)
    engine = replace(
        PROFILE.engine, num_gpu_blocks=BLOCKS, max_num_seqs=16, max_num_batched_tokens=512
    )
    tiers = [KvTier(name="cpu", size=options["chunks"] * PAGE_BYTES, bandwidth=BANDWIDTH)]
    if "disk_chunks" in options:
        size = options["disk_chunks"] * PAGE_BYTES
        tiers.append(KvTier(name="disk", size=size, bandwidth=DISK_BANDWIDTH))
    rules = TierRules(
        policy=options.get("policy", "lru"), store_threshold=options.get("store_threshold", 0)
    )
    plan = SimulationPlan(
        profile=replace(PROFILE, engine=engine, kv_bytes_per_token=BLOCK_BYTES / BLOCK_SIZE),
        tiers=tuple(tiers),
        tier_rules=rules,
    )
    cached_tokens = {}

    def watch(pod: Any, batch: Any, start_s: float, end_s: float) -> None:
        for request in batch.admitted:
            cached_tokens.setdefault(request.number, request.cached_tokens)

    simulation = Simulation(load, plan, ignore_progress, watch)
    outcome = simulation.run()
    [pod] = simulation.pods
    assert isinstance(pod, TieredPod) and pod.tiers is not None
    pod.tiers.end()
    return Seen(
        cached_tokens=[cached_tokens[number] for number in range(len(asks))],
        ttft_s=[first - sent for first, sent in zip(outcome.first_s, outcome.send_s, strict=True)],
        loaded_bytes=pod.tiers.counts.loaded_bytes,
        stored_bytes=pod.tiers.counts.stored_bytes,
    )


@VARIANTS
@pytest.mark.parametrize("seed", range(3))
def test_hits_and_transfers_of_single_requests_are_equal(
    options: dict[str, Any], seed: int
) -> None:
    asks = draw(seed, gap_s=20.0)
    live = serve(asks, options)
    offline = simulate(asks, options)
    assert offline.cached_tokens == live.cached_tokens
    assert offline.loaded_bytes == live.loaded_bytes > 0
    assert offline.stored_bytes == live.stored_bytes > 0
    assert offline.ttft_s == pytest.approx(live.ttft_s, abs=2e-3)


@VARIANTS
@pytest.mark.parametrize("seed", [0, 1, 4])
def test_hits_and_transfers_of_concurrent_requests_agree_within_one_percent(
    options: dict[str, Any], seed: int
) -> None:
    asks = draw(seed, gap_s=1.5, burst=3)
    live = serve(asks, options)
    ready_s = [ask.at_s + ttft_s for ask, ttft_s in zip(asks, live.ttft_s, strict=True)]
    waiting = [ready > later.at_s for ready, later in zip(ready_s, asks[1:], strict=False)]
    assert sum(waiting) > len(asks) / 5, "requests overlap"
    offline = simulate(asks, options)
    assert sum(offline.cached_tokens) == pytest.approx(sum(live.cached_tokens), rel=0.01)
    assert offline.loaded_bytes == pytest.approx(live.loaded_bytes, rel=0.01)
    assert offline.stored_bytes == pytest.approx(live.stored_bytes, rel=0.01)
    assert sum(offline.ttft_s) == pytest.approx(sum(live.ttft_s), rel=0.01)
