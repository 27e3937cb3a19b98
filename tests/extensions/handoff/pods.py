"""Engines on virtual clocks, whose side channels are queues that a test delivers or drops."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, cast

from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots
from app.core.engine.engine import EngineParts
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.kvcache.stores import ConnectorStore
from app.core.engine.lora import Adapter
from app.core.engine.outputs import EngineOutput, Failed, Tokens
from app.core.engine.profile import read_profile
from app.core.engine.request import LENGTH, EngineRequest, Reply, SequenceOutcome, Watch
from app.core.engine.sampling import Sampling
from app.core.engine.sequence import Handle
from app.core.protocol.common import KVTransferParams
from app.extensions.handoff.dialects import Dialect, NixlDialect
from app.extensions.handoff.engine import HandoffEngine
from app.extensions.handoff.handoffs import Peering
from app.extensions.handoff.messages import Answer, Done, Question, SendAnswer
from app.shared.step_policies.choice import simulated_policies
from app.shared.virtual_clock import VirtualClock
from config.sections.engine import KVCacheSettings
from config.settings import LatencySettings, Settings
from tests.core.engine.harness import sections_of
from tests.core.metrics.sample_lines import sample_lines

BLOCK_TOKENS = 8
LEASE_S = 3.0
TIMEOUT_S = 1.0
STEP_S = 0.05
"""Time between two looks at the clocks of all pods, in seconds."""
PROFILE = read_profile("qwen3-14b-h100")


def adapter_named(name: str) -> Adapter:
    return Adapter(name, "/" + name)


def is_loaded(adapter: Adapter) -> bool:
    return False


class PlainModel:
    """Every reply has as many tokens as it may have."""

    def reply(self, request: EngineRequest) -> Reply:
        return Reply(["x"] * request.max_tokens, [1] * request.max_tokens, LENGTH)

    def beams(self, requests: Any) -> list[Reply]:
        return [self.reply(request) for request in requests]


class Network:
    """The messages between the pods, in the order in which they were sent."""

    def __init__(self) -> None:
        self.messages: list[Callable[[], None]] = []
        self.listeners: dict[tuple[str, int], QueuedChannel] = {}
        self.confirmed: set[str] = set()
        """Requests whose blocks were held until a reader said that it has them."""

    def deliver(self) -> None:
        """Delivers all messages, also those that are sent meanwhile."""
        while self.messages:
            self.messages.pop(0)()

    def drop(self) -> None:
        """Loses the oldest message."""
        if self.messages:
            self.messages.pop(0)


class QueuedChannel:
    """A side channel at `address`."""

    def __init__(self, network: Network, address: tuple[str, int]) -> None:
        self._network = network
        self.host, self.port = address
        self.is_alive = True
        self._respond: Callable[[Question, SendAnswer], str]
        self._take_answer: Callable[[Answer], None]

    def serve(
        self, respond: Callable[[Question, SendAnswer], str], take_answer: Callable[[Answer], None]
    ) -> None:
        self._respond = respond
        self._take_answer = take_answer

    def open(self) -> None:
        self._network.listeners[self.host, self.port] = self

    def send(self, host: str, port: int, question: Question) -> bool:
        self._network.messages.append(partial(self._arrive, host, port, question))
        return True

    def forget(self, host: str, port: int) -> None:
        """What the peer has not received may still arrive."""

    def _arrive(self, host: str, port: int, question: Question) -> None:
        peer = self._network.listeners.get((host, port))
        if peer is None or not peer.is_alive or not self.is_alive:
            return
        problem = peer._respond(question, partial(self._send_back, question))
        message = question.message
        if isinstance(message, Done) and not problem:
            self._network.confirmed.add(message.request_id)
        self._send_back(question, problem)

    def _send_back(self, question: Question, problem: str) -> None:
        if question.number:
            answer = Answer(question.number, problem)
            self._network.messages.append(partial(self._return, answer))

    def _return(self, answer: Answer) -> None:
        if self.is_alive:
            self._take_answer(answer)


class Request:
    """A request of `pod`, and what came of it."""

    def __init__(self, pod: "Pod", prompt: list[int], address: KVTransferParams | None) -> None:
        self.pod = pod
        self.prompt = prompt
        self._address = address
        self.handle: Handle | None = None
        self.end = ""
        """The finish reason, or `error`."""
        self.outcome: SequenceOutcome | None = None

    @property
    def address(self) -> KVTransferParams:
        """The parameters in the answer of a prefill for NixlConnector."""
        assert self._address is not None
        return self._address

    @property
    def source(self) -> str:
        """What names the prefill."""
        return self.address.remote_request_id

    @property
    def fetched_tokens(self) -> int:
        """Tokens of the prompt from another pod, once the first reply token has come."""
        handle = self.handle
        choices = () if handle is None else handle.choices
        for choice in choices:
            return choice.fetched_tokens if choice.begun else 0
        return 0 if self.outcome is None else self.outcome.fetched_tokens

    def watch(self, request: EngineRequest) -> Watch:
        """An observer of the engine."""
        return self._take_outcome

    def _take_outcome(self, outcome: SequenceOutcome) -> None:
        if outcome.first_token_s is not None:
            self.outcome = outcome

    def take(self, output: EngineOutput) -> None:
        if isinstance(output, Failed):
            self.end = "error"
        elif isinstance(output, Tokens) and output.finish is not None:
            self.end = output.finish.reason


class Pod:
    """One engine. Its name is new with each pod, its address is not."""

    names = 0

    def __init__(
        self,
        network: Network,
        port: int,
        *,
        blocks: int | None = 9,
        steps: bool = False,
        policy: str = "fail",
        prefill_s: float = 0.0,
        transfer_s: float = 0.0,
        lease_s: float = LEASE_S,
        start_s: float = 1000.0,
        dialect: Dialect | None = None,
        store: ConnectorStore | None = None,
    ) -> None:
        Pod.names += 1
        self.name = f"engine-{Pod.names}"
        self.port = port
        self.clock = VirtualClock(start_s)
        self.channel = QueuedChannel(network, ("pod", port))
        settings = Settings(
            kvcache=KVCacheSettings(
                kv_connector="nixl",
                kv_load_failure_policy=cast("Any", policy),
                kv_lease_duration=lease_s,
                kv_side_channel_timeout=TIMEOUT_S,
                block_size=BLOCK_TOKENS,
                kv_cache_size=9,
            ),
            latency=LatencySettings(
                time_to_first_token=prefill_s, kv_cache_transfer_latency=transfer_s
            ),
        )
        self.recorder = Recorder(
            settings.model.served_names[0],
            4096,
            {"block_size": str(BLOCK_TOKENS)},
            options=RecorderOptions(transfers=True, steps=steps),
        )
        self.cache: KVCacheManager | None = None
        if blocks is not None:
            self.cache = KVCacheManager(
                blocks,
                BlockHasher("sha256_cbor", BLOCK_TOKENS, "0", Random(1)),
                self.recorder,
                adapter_of=adapter_named,
                store=store,
            )
        parts = EngineParts(
            model=PlainModel(),
            recorder=self.recorder,
            clock=self.clock,
            streams=Streams("1", 0),
            lora=LoRASlots(1, is_loaded),
            cache=self.cache,
            policies=[simulated_policies],
        )
        self.engine = HandoffEngine(
            sections_of(settings),
            parts,
            PROFILE if steps else None,
            peering=Peering(
                self.channel,
                self.engine_id,
                settings.model.served_names[0],
                dialect=dialect or NixlDialect(),
            ),
        )
        self._numbers = 0

    def engine_id(self) -> str:
        return self.name

    def prefill(self, prompt: list[int], delay_s: float = 0.0, request_id: str = "r") -> Request:
        """A prefill for another pod; `delay_s` is between its step and its answer."""
        self._numbers += 1
        address = KVTransferParams(
            remote_engine_id="",
            remote_block_ids=((1,),),
            remote_request_id=f"{self.name}-{self._numbers}",
            remote_host="pod",
            remote_port=0,
            remote_num_tokens=len(prompt),
        )
        delays = ((0, delay_s),) if delay_s else ()
        request = Request(self, prompt, address)
        return self._submit(request, 1, request_id, address=address, delays=delays)

    def decode(self, prefill: Request, tokens: int = 3, **changes: Any) -> Request:
        """A decode of a prefill; `changes` are wrong parameters."""
        address = prefill.address
        source = {
            "remote_engine_id": address.remote_engine_id,
            "remote_block_ids": address.remote_block_ids,
            "remote_request_id": address.remote_request_id,
            "remote_host": address.remote_host,
            "remote_port": address.remote_port,
            **changes,
        }
        request = Request(self, prefill.prompt, address)
        return self._submit(request, tokens, source=source, remote_prefill=True)

    def prefill_as(self, prompt: list[int], source: dict[str, object]) -> Request:
        """A prefill with the parameters of another connector, which answers with none."""
        return self._submit(Request(self, prompt, None), 1, source=source)

    def decode_as(
        self, prompt: list[int], source: dict[str, object], request_id: str = "r"
    ) -> Request:
        """A decode with the parameters of another connector."""
        request = Request(self, prompt, None)
        return self._submit(request, 3, request_id, source=source, remote_prefill=True)

    def complete(
        self, prompt: list[int], source: dict[str, object], address: object = None
    ) -> Request:
        """A request without flags for a handoff; `address` is the object in its answer."""
        return self._submit(Request(self, prompt, None), 3, source=source, address=address)

    def _submit(
        self, request: Request, tokens: int, request_id: str = "r", **fields: Any
    ) -> Request:
        choice = EngineRequest(
            request_id=request_id,
            index=0,
            model="m",
            prompt_ids=request.prompt,
            echo_text="",
            max_tokens=tokens,
            sampling=Sampling(max_tokens=tokens),
            arrival_s=self.clock.now(),
            observers=[request.watch],
            **fields,
        )
        request.handle = self.engine.submit([choice], request.take)
        return request

    @property
    def held(self) -> float:
        """Blocks that are not free."""
        blocks = self.engine.executor.blocks
        return 0 if blocks is None else blocks.capacity - blocks.free

    @property
    def is_idle(self) -> bool:
        engine = self.engine
        handoffs = engine.handoffs
        requests = engine.running + engine.waiting + engine.in_flight
        transfers = len(handoffs.leases) + len(handoffs.early_reads) + handoffs.reads.open
        return not requests and not transfers and not self.held

    def metric(self, name: str) -> float:
        """The value of `vllm:name`."""
        [line] = sample_lines(self.recorder, f"vllm:{name}")
        return float(line.rpartition(" ")[2])

    def failures(self) -> tuple[float, float, float]:
        """Failed transfers, ended leases, and notifications that came too late."""
        return (
            self.metric("nixl_num_failed_transfers_total"),
            self.metric("nixl_num_kv_expired_reqs_total"),
            self.metric("nixl_num_notifications_after_expiry_total"),
        )

    def hits(self) -> tuple[float, float]:
        """Transfers, and the prompt tokens that they brought."""
        return (
            self.metric("nixl_xfer_time_seconds_count"),
            self.metric("external_prefix_cache_hits_total"),
        )


def advance(network: Network, pods: list[Pod], seconds: float, delivers: bool = True) -> None:
    """Lets time pass for all pods, and delivers the messages if `delivers`."""
    steps = round(seconds / STEP_S)
    for _ in range(steps):
        for pod in pods:
            pod.clock.advance(STEP_S)
        if delivers:
            network.deliver()
