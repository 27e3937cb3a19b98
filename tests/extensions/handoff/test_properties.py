"""Whatever two pods and their network do, held blocks return to zero and hits count once."""

from operator import attrgetter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from app.extensions.handoff.reads import MAX_WAIT_S
from tests.extensions.handoff.pods import LEASE_S, TIMEOUT_S, Network, Pod, Request, advance

PROMPTS = [
    list(range(start, start + size)) for start, size in ((0, 17), (0, 40), (100, 40), (7, 60))
]
"""Three to eight blocks of a pool of eight; two prompts have a common beginning."""
PORTS = (1, 2, 3)
STEP_LIMIT_S = 40.0
ports = st.sampled_from(PORTS)
indexes = st.integers(0, 20)
EXAMPLES = settings(deadline=None, max_examples=25, stateful_step_count=30)


def has_requests(handoffs: "Handoffs") -> bool:
    return bool(handoffs.prefills or handoffs.decodes)


class Handoffs(RuleBasedStateMachine):
    """Pods that prefill, decode, lose messages, wait and die. Every pod does both."""

    options: dict[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()
        self.pods: dict[int, Pod] = {}
        self.dead: list[Pod] = []
        self.prefills: list[Request] = []
        self.decodes: list[Request] = []

    @initialize(policy=st.sampled_from(["fail", "recompute"]), transfer_s=st.sampled_from([0, 2]))
    def start(self, policy: str, transfer_s: float) -> None:
        self.options = {**self.options, "policy": policy, "transfer_s": transfer_s}
        self.pods = {port: Pod(self.network, port, **self.options) for port in PORTS}

    @rule(port=ports, prompt=st.sampled_from(PROMPTS), delay_s=st.sampled_from([0.0, 1.0]))
    def prefill(self, port: int, prompt: list[int], delay_s: float) -> None:
        self.prefills.append(self.pods[port].prefill(prompt, delay_s))

    @precondition(attrgetter("prefills"))
    @rule(port=ports, index=indexes)
    def decode(self, port: int, index: int) -> None:
        """Also a retry, a second decode, or one before the end of its prefill."""
        prefill = self.prefills[index % len(self.prefills)]
        self.decodes.append(self.pods[port].decode(prefill))

    @precondition(attrgetter("prefills"))
    @rule(port=ports, index=indexes)
    def decode_of_another_engine(self, port: int, index: int) -> None:
        prefill = self.prefills[index % len(self.prefills)]
        changed = self.pods[port].decode(prefill, remote_engine_id="nonsense")
        self.decodes.append(changed)

    @rule(seconds=st.sampled_from([0.05, 0.3, TIMEOUT_S, LEASE_S]), delivers=st.booleans())
    def wait(self, seconds: float, delivers: bool) -> None:
        advance(self.network, list(self.pods.values()), seconds, delivers)

    @rule()
    def deliver(self) -> None:
        self.network.deliver()

    @rule()
    def lose(self) -> None:
        self.network.drop()

    @precondition(has_requests)
    @rule(index=indexes)
    def disconnect(self, index: int) -> None:
        requests = [*self.prefills, *self.decodes]
        handle = requests[index % len(requests)].handle
        assert handle is not None
        handle.abort()

    @rule(port=ports)
    def kill(self, port: int) -> None:
        """Kills a pod; another one starts at its address."""
        pod = self.pods[port]
        pod.channel.is_alive = False
        self.dead.append(pod)
        start_s = pod.clock.now()
        self.pods[port] = Pod(self.network, port, **self.options, start_s=start_s)

    @invariant()
    def hits_count_once(self) -> None:
        """Each prompt is fetched at most once, and its tokens are those of one request."""
        fetched = [request for request in self.decodes if request.fetched_tokens]
        for pod in (*self.pods.values(), *self.dead):
            pod_requests = [request for request in fetched if request.pod is pod]
            assert pod.hits() == (
                len(pod_requests),
                sum(request.fetched_tokens for request in pod_requests),
            )
        sources = [request.source for request in fetched]
        assert len(sources) == len(set(sources))
        assert set(sources) <= self.network.confirmed

    def teardown(self) -> None:
        """All live pods become idle without further requests."""
        pods = list(self.pods.values())
        limit_s = MAX_WAIT_S + (len(self.prefills) + len(self.decodes)) * STEP_LIMIT_S
        waited_s = 0.0
        while waited_s < limit_s and not all(pod.is_idle for pod in pods):
            advance(self.network, pods, 1.0)
            waited_s += 1.0
        assert not any(pod.held for pod in pods)
        assert all(pod.is_idle for pod in pods)
        for request in (*self.prefills, *self.decodes):
            handle = request.handle
            if request.pod in pods and handle is not None:
                assert not handle.choices  # no request is stuck
        self.hits_count_once()


class SteppedHandoffs(Handoffs):
    """The same where sequences share steps."""

    options = {"steps": True}


class CountedHandoffs(Handoffs):
    """The same without a cache of prompts."""

    options = {"steps": True, "blocks": None}


TestHandoffs = Handoffs.TestCase
TestHandoffs.settings = EXAMPLES
TestSteppedHandoffs = SteppedHandoffs.TestCase
TestSteppedHandoffs.settings = EXAMPLES
TestCountedHandoffs = CountedHandoffs.TestCase
TestCountedHandoffs.settings = EXAMPLES
