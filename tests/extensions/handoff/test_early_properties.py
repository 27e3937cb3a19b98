"""Whatever pods of connectors with early decodes do, no request is stuck and no block leaks."""

from operator import attrgetter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from app.core.engine.kvcache.stores import ConnectorStore
from app.extensions.handoff.dialects import EarlyDialect
from app.extensions.handoff.peers import PeerDialect
from app.extensions.handoff.push import NixlPushDialect
from tests.extensions.handoff.pods import (
    BLOCK_TOKENS,
    LEASE_S,
    TIMEOUT_S,
    Network,
    Pod,
    Request,
    advance,
)

PROMPTS = [
    list(range(start, start + size)) for start, size in ((0, 17), (0, 40), (100, 40), (7, 60))
]
"""Three to eight blocks of a pool of eight; two prompts have a common beginning."""
PORTS = (1, 2, 3)
IDS = ("a", "b", "c")
WAIT_S = 20.0
ports = st.sampled_from(PORTS)
ids = st.sampled_from(IDS)
prompts = st.sampled_from(PROMPTS)
EXAMPLES = settings(
    deadline=None,
    max_examples=20,
    stateful_step_count=25,
    # Rules run while Hypothesis draws them: a loaded machine is no reason to fail.
    suppress_health_check=[HealthCheck.too_slow],
)


class ImpatientPush(NixlPushDialect):
    """A shorter wait, for the speed of the test."""

    wait_s = WAIT_S


class ImpatientPeers(PeerDialect):
    """A shorter wait, for the speed of the test."""

    wait_s = WAIT_S
    hold_s = WAIT_S


class EarlyHandoffs(RuleBasedStateMachine):
    """Pods that prefill, decode, lose messages, wait and die. Every pod does both."""

    options: dict[str, Any] = {}
    dialect: EarlyDialect = ImpatientPush()

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()
        self.pods: dict[int, Pod] = {}
        self.requests: list[Request] = []

    @initialize(policy=st.sampled_from(["fail", "recompute"]), transfer_s=st.sampled_from([0, 2]))
    def start(self, policy: str, transfer_s: float) -> None:
        self.options = {**self.options, "policy": policy, "transfer_s": transfer_s}
        for port in PORTS:
            self.start_pod(port, start_s=1000.0)

    def start_pod(self, port: int, start_s: float) -> None:
        pod = Pod(
            self.network,
            port,
            **self.options,
            dialect=self.dialect,
            store=ConnectorStore(BLOCK_TOKENS),
            start_s=start_s,
        )
        pod.channel.open()
        self.pods[port] = pod

    @rule(port=ports, prompt=prompts, request_id=ids, delay_s=st.sampled_from([0.0, 1.0]))
    def prefill(self, port: int, prompt: list[int], request_id: str, delay_s: float) -> None:
        self.requests.append(self.pods[port].prefill(prompt, delay_s, request_id))

    @rule(port=ports, source=ports, prompt=prompts, request_id=ids)
    def decode(self, port: int, source: int, prompt: list[int], request_id: str) -> None:
        """Also a second decode, and one whose prefill never comes."""
        params = {
            "do_remote_prefill": True,
            "remote_engine_id": self.pods[source].name,
            "remote_request_id": f"{request_id}-0123abcd",
            "remote_host": "pod",
            "remote_port": source,
            "tp_size": 1,
        }
        self.requests.append(self.pods[port].decode_as(prompt, params, request_id))

    @rule(seconds=st.sampled_from([0.05, 0.3, TIMEOUT_S, LEASE_S]), delivers=st.booleans())
    def wait(self, seconds: float, delivers: bool) -> None:
        advance(self.network, list(self.pods.values()), seconds, delivers)

    @rule()
    def lose(self) -> None:
        self.network.drop()

    @precondition(attrgetter("requests"))
    @rule(index=st.integers(0, 20))
    def disconnect(self, index: int) -> None:
        handle = self.requests[index % len(self.requests)].handle
        assert handle is not None
        handle.abort()

    @rule(port=ports)
    def kill(self, port: int) -> None:
        """Kills a pod; another one starts at its address."""
        pod = self.pods[port]
        pod.channel.is_alive = False
        self.start_pod(port, start_s=pod.clock.now())

    def teardown(self) -> None:
        """All that lives comes to rest by itself."""
        pods = list(self.pods.values())
        limit_s = 10 * WAIT_S * (1 + len(self.requests))
        waited_s = 0.0
        while waited_s < limit_s and not all(is_resting(pod) for pod in pods):
            advance(self.network, pods, 5.0)
            waited_s += 5.0
        assert not any(pod.held for pod in pods)
        assert all(is_resting(pod) for pod in pods)
        for request in self.requests:
            if request.pod in pods:
                assert request.handle is not None
                assert not request.handle.choices  # no request is stuck


def is_resting(pod: Pod) -> bool:
    """Whether nothing happens. A question of a pod that has died may still wait."""
    engine = pod.engine
    requests = engine.running + engine.waiting + engine.in_flight
    return not (requests or pod.held or engine.handoffs.reads.open or engine.handoffs.leases)


class SteppedEarlyHandoffs(EarlyHandoffs):
    """The same where sequences share steps."""

    options = {"steps": True}


class Peers(EarlyHandoffs):
    """The same with OffloadingConnector's P2P tier."""

    dialect = ImpatientPeers()

    @rule(port=ports, prompt=prompts, request_id=ids, delay_s=st.sampled_from([0.0, 1.0]))
    def prefill(self, port: int, prompt: list[int], request_id: str, delay_s: float) -> None:
        params: dict[str, object] = {"remote_decoder": {"kv_request_id": request_id}}
        self.requests.append(self.pods[port].complete(prompt, params))

    @rule(
        port=ports,
        source=ports,
        prompt=prompts,
        request_id=ids,
        role=st.sampled_from(["remote_prefiller", "remote_kv_source"]),
    )
    def copy(self, port: int, source: int, prompt: list[int], request_id: str, role: str) -> None:
        peer = {"kv_request_id": request_id, "remote_host": "pod", "remote_port": source}
        self.requests.append(self.pods[port].complete(prompt, {role: peer}))

    def teardown(self) -> None:
        """No request ends with an error."""
        super().teardown()
        assert not any(request.end == "error" for request in self.requests)


class SteppedPeers(Peers):
    """The same where sequences share steps."""

    options = {"steps": True}


TestEarlyHandoffs = EarlyHandoffs.TestCase
TestEarlyHandoffs.settings = EXAMPLES
TestSteppedEarlyHandoffs = SteppedEarlyHandoffs.TestCase
TestSteppedEarlyHandoffs.settings = EXAMPLES
TestPeers = Peers.TestCase
TestPeers.settings = EXAMPLES
TestSteppedPeers = SteppedPeers.TestCase
TestSteppedPeers.settings = EXAMPLES
