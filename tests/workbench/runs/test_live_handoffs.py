"""One trace through a prefill and a decode server, and through `simulate`, on virtual clocks.

Both decide by the same code which blocks a decode pod reads, and when they arrive. One request at a
time, hits, transfers and times are equal; with concurrent requests they agree within 1 %.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots
from app.core.engine.engine import EngineParts
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.outputs import Tokens
from app.core.engine.profile import read_profile
from app.core.protocol.common import KVTransferParams
from app.extensions.handoff.engine import HandoffEngine
from app.extensions.handoff.handoffs import Peering
from app.shared.step_policies.choice import simulated_policies
from config.sections.engine import KVCacheSettings
from config.settings import LatencySettings, SchedulingSettings, Settings, StepSettings
from tests.core.engine.harness import engine_request, sections_of
from tests.extensions.handoff.pods import Network, PlainModel, QueuedChannel, adapter_named
from workbench.load.loads import LoadTrace
from workbench.load.progress import ignore_progress
from workbench.runs.disaggregation import Disaggregation
from workbench.runs.simulation import Simulation, SimulationPlan

BLOCK_SIZE = 16
BLOCKS = 120
START_S = 1000.0
TOKEN_S = 0.5e-3
"""Seconds that a token of a prompt takes from pod to pod."""
BYTES_PER_TOKEN = 1e6
REQUESTS = 100
GROUPS = 14
BURST_GAP_S = 0.013
PROFILE = read_profile("qwen3-14b-h100")


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
    """What a run found in the two caches, and when first tokens came."""

    prefill_cached_tokens: list[int] = field(default_factory=list)
    decode_cached_tokens: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)


class SharedTime:
    """The time of all engines, which moves from alarm to alarm."""

    def __init__(self, network: Network) -> None:
        self.now_s = START_S
        self.clocks: list[SharedClock] = []
        self._network = network

    def advance(self, until_s: float) -> None:
        """Rings all alarms until `until_s`, and delivers what they send."""
        while True:
            self._network.deliver()
            clock = min(self.clocks, key=lambda clock: clock.moment_s)
            if clock.moment_s > until_s:
                break
            self.now_s = max(self.now_s, clock.moment_s)
            clock.ring()
        self.now_s = until_s


class SharedClock:
    """The clock of an engine."""

    def __init__(self, time: SharedTime) -> None:
        self._time = time
        self.moment_s = float("inf")
        self._alarm: Callable[[], None] = time.clocks.clear
        time.clocks.append(self)

    def now(self) -> float:
        """See `Clock`."""
        return self._time.now_s

    def ring_at(self, moment_s: float, alarm: Callable[[], None]) -> None:
        """See `Clock`."""
        self.moment_s = moment_s
        self._alarm = alarm

    def ring(self) -> None:
        """Rings the alarm once."""
        self.moment_s = float("inf")
        self._alarm()


class Server:
    """An engine with a side channel."""

    def __init__(self, network: Network, time: SharedTime, port: int) -> None:
        settings = Settings(
            kvcache=KVCacheSettings(kv_connector="nixl", block_size=BLOCK_SIZE, kv_cache_size=9),
            latency=LatencySettings(kv_cache_transfer_time_per_token=TOKEN_S),
            scheduling=SchedulingSettings(max_num_seqs=16),
            steps=StepSettings(max_num_batched_tokens=512),
        )
        self.clock = SharedClock(time)
        recorder = Recorder("m", 4096, {}, options=RecorderOptions(transfers=True, steps=True))
        parts = EngineParts(
            model=PlainModel(),
            recorder=recorder,
            clock=self.clock,
            streams=Streams(1, 0),
            lora=LoRASlots(1, lambda adapter: False),
            cache=KVCacheManager(
                BLOCKS,
                BlockHasher("sha256_cbor", BLOCK_SIZE, "0", Random(1)),
                recorder,
                adapter_of=adapter_named,
            ),
            policies=[simulated_policies],
        )
        self.name = f"engine-{port}"
        channel = QueuedChannel(network, ("pod", port))
        self.engine = HandoffEngine(
            sections_of(settings), parts, PROFILE, peering=Peering(channel, lambda: self.name, "m")
        )
        self.outputs: dict[int, list[Any]] = {}
        self.sequences: dict[int, Any] = {}

    def submit(
        self,
        number: int,
        prompt: list[int],
        max_tokens: int,
        on_end: Callable[[], None] | None = None,
        **fields: Any,
    ) -> None:
        """Submits a completion."""
        self.outputs[number] = []
        request = engine_request(
            request_id=f"{self.name}-{number}",
            prompt_ids=prompt,
            max_tokens=max_tokens,
            arrival_s=self.clock.now(),
            **fields,
        )
        handle = self.engine.submit([request], partial(self._take, number, on_end))
        self.sequences[number] = handle.choices[0]

    def _take(self, number: int, on_end: Callable[[], None] | None, output: Any) -> None:
        self.outputs[number].append(output)
        if isinstance(output, Tokens) and output.finish is not None and on_end is not None:
            on_end()

    def cached_tokens(self, number: int) -> int:
        """Returns the tokens of a prompt that were in the cache."""
        return int(self.sequences[number].cached_tokens)

    def token_s(self, number: int, place: int) -> float:
        """Returns the time of the first (0) or of the last (-1) token."""
        tokens = [output for output in self.outputs[number] if isinstance(output, Tokens)]
        return float(tokens[place].at_s - START_S)


def draw(seed: int, *, gap_s: float, burst: int = 1) -> list[Ask]:
    """Returns a trace whose requests arrive in bursts of `burst`, `gap_s` apart on average."""
    random = Random(seed)
    asks = []
    at_s = 0.0
    for number in range(1, REQUESTS + 1):
        group = min(GROUPS - 1, int(random.expovariate(0.2)))
        prefix_tokens = BLOCK_SIZE * (2 + group % 6)
        prompt_tokens = prefix_tokens + random.randint(1, 300)
        asks.append(Ask(at_s, group, prefix_tokens, prompt_tokens, random.randint(2, 60)))
        at_s += gap_s * random.uniform(0.5, 1.5) if number % burst == 0 else BURST_GAP_S
    return asks


def serve(asks: Sequence[Ask]) -> Seen:
    """Plays the trace on a prefill and a decode server; a router sends each request to both."""
    network = Network()
    time = SharedTime(network)
    prefills = Server(network, time, port=1)
    decodes = Server(network, time, port=2)

    def decode(number: int, ask: Ask, address: KVTransferParams) -> None:
        source = {
            "remote_engine_id": address.remote_engine_id,
            "remote_block_ids": address.remote_block_ids,
            "remote_request_id": address.remote_request_id,
            "remote_host": address.remote_host,
            "remote_port": address.remote_port,
        }
        decodes.submit(
            number,
            ask.prompt(number),
            ask.output_tokens,
            source=source,
            remote_prefill=True,
        )

    for number, ask in enumerate(asks):
        time.advance(START_S + ask.at_s)
        address = KVTransferParams(
            remote_engine_id="",
            remote_block_ids=((1,),),
            remote_request_id=str(number),
            remote_host="pod",
            remote_port=0,
            remote_num_tokens=ask.prompt_tokens,
        )
        answer = partial(network.messages.append, partial(decode, number, ask, address))
        prefills.submit(number, ask.prompt(number), 1, answer, address=address)
    time.advance(START_S + asks[-1].at_s + 600)
    numbers = range(len(asks))
    return Seen(
        prefill_cached_tokens=[prefills.cached_tokens(number) for number in numbers],
        decode_cached_tokens=[decodes.cached_tokens(number) for number in numbers],
        ttft_s=[decodes.token_s(number, 0) - ask.at_s for number, ask in enumerate(asks)],
        end_s=[decodes.token_s(number, -1) for number in numbers],
    )


def simulate(asks: Sequence[Ask]) -> Seen:
    """Plays the trace on two pods of `simulate`."""
    load = LoadTrace("trace", node_tokens=1_000)
    for ask in asks:
        load.arrival_s.append(START_S + ask.at_s)
        load.input_tokens.append(ask.prompt_tokens)
        load.output_tokens.append(ask.output_tokens)
        load.group.append(ask.group)
        load.prefix_tokens.append(ask.prefix_tokens)
    engine = replace(
        PROFILE.engine,
        num_gpu_blocks=BLOCKS,
        max_num_seqs=16,
        max_num_batched_tokens=512,
    )
    plan = SimulationPlan(
        profile=replace(PROFILE, engine=engine),
        pods=2,
        disaggregation=Disaggregation(
            prefill_pods=1,
            decode_pods=1,
            bytes_per_token=BYTES_PER_TOKEN,
            bandwidth=BYTES_PER_TOKEN / TOKEN_S,
        ),
    )
    cached_tokens: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def watch(pod: Any, batch: Any, start_s: float, end_s: float) -> None:
        for request in batch.admitted:
            cached_tokens[pod.number].setdefault(request.number, request.cached_tokens)

    outcome = Simulation(load, plan, ignore_progress, watch).run()
    numbers = range(len(asks))
    return Seen(
        prefill_cached_tokens=[cached_tokens[0][number] for number in numbers],
        decode_cached_tokens=[cached_tokens[1][number] for number in numbers],
        ttft_s=[first - sent for first, sent in zip(outcome.first_s, outcome.send_s, strict=True)],
        end_s=[last_s - START_S for last_s in outcome.last_s],
    )


@pytest.mark.parametrize("seed", range(3))
def test_hits_and_transfers_of_single_requests_are_equal(seed: int) -> None:
    asks = draw(seed, gap_s=20.0)
    live = serve(asks)
    offline = simulate(asks)
    assert offline.prefill_cached_tokens == live.prefill_cached_tokens
    assert offline.decode_cached_tokens == live.decode_cached_tokens
    assert sum(live.prefill_cached_tokens) > 0
    assert sum(live.decode_cached_tokens) > 0
    assert offline.ttft_s == pytest.approx(live.ttft_s, abs=2e-3)
    assert offline.end_s == pytest.approx(live.end_s, abs=3e-3)


@pytest.mark.parametrize("seed", range(3))
def test_hits_and_transfers_of_concurrent_requests_agree_within_one_percent(seed: int) -> None:
    asks = draw(seed, gap_s=1.0, burst=5)
    live = serve(asks)
    ready_s = [ask.at_s + ttft_s for ask, ttft_s in zip(asks, live.ttft_s, strict=True)]
    waiting = [ready > later.at_s for ready, later in zip(ready_s, asks[1:], strict=False)]
    assert sum(waiting) > len(asks) / 2, "requests overlap"
    offline = simulate(asks)
    for name in ("prefill_cached_tokens", "decode_cached_tokens", "ttft_s", "end_s"):
        assert sum(getattr(offline, name)) == pytest.approx(sum(getattr(live, name)), rel=0.01)
