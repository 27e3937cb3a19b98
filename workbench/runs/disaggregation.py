"""Prefill and decode on separate pods, as with vLLM's NixlConnector (docs/simulate.md).

A prefill pod computes a prompt and one token, which the client never sees. It keeps the prompt's
blocks until a decode pod has pulled them. The decode pod begins the transfer when it has blocks for
the whole prompt, computes the prompt's last token again, and so gives the client its first token.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

from workbench.engine.steps import Batch, CostModel, Links, transferred_blocks
from workbench.runs.pod import Pod, PodContext
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.timeline import Timeline, total_use

TRANSFERS_NUMBER = -1
"""Number of the transfers among the pods; of simultaneous events, those of transfers come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """A split into prefill and decode pods, and the network between them."""

    prefill_pods: int
    decode_pods: int
    bytes_per_token: float
    """Keys and values of a token, on all devices of an engine."""
    bandwidth: float = inf
    """Bytes per second from a prefill pod to a decode pod, whose transfers wait for each other."""
    latency_s: float = 0.0
    """Added to each transfer; does not delay other transfers."""

    def __str__(self) -> str:
        text = f"{self.bytes_per_token / 1e3:g} kB a token at {self.bandwidth / 1e9:g} GB/s"
        if self.latency_s:
            text += f" and {self.latency_s * 1000:g} ms"
        return text


class PrefillRequest(OfflineRequest):
    """The part of a request that a prefill pod computes."""

    __slots__ = ("decode_pod", "pod", "request")
    remote_decode = True

    def __init__(self, request: OfflineRequest, pod: PoolPod, decode_pod: PoolPod) -> None:
        super().__init__(request.arrival_s, request.prompt_tokens, 1, request.number)
        self.path = request.path
        self.node_tokens = request.node_tokens
        self.prefix_tokens = request.prefix_tokens
        self.session = request.session
        self.images = request.images
        self.send_s = request.send_s
        self.request = request
        self.pod = pod
        self.decode_pod = decode_pod


class Transfers:
    """Hands prompts from prefill to decode pods; stores times in columns, in order of requests.

    Advances as a pod does: `next_s` is the time of its next event.
    """

    def __init__(
        self,
        plan: Disaggregation,
        choose: Callable[[OfflineRequest, Sequence[int], Mapping[int, int]], int],
        *,
        requests: int,
        endings: list[tuple[float, int]],
        on_change: Callable[[int, Pod | Transfers], None],
    ) -> None:
        """Stores the plan and the callbacks of the simulation.

        Args:
            plan: The pods and their network.
            choose: Chooses the decode pod of a request.
            requests: Number of requests in the load.
            endings: Heap of ended requests: times and pods.
            on_change: Receives the number and the part whose next event may have changed; the
                number is `TRANSFERS_NUMBER` for the transfers.
        """
        self._plan = plan
        self._choose = choose
        self._endings = endings
        self._on_change = on_change
        self.due_s = inf
        self.next_s = inf
        self._pods: list[PoolPod] = []
        self._decode_pods = range(plan.prefill_pods, plan.prefill_pods + plan.decode_pods)
        self._events: list[tuple[float, int, bool, PrefillRequest]] = []
        """A heap: time, number of the request, True for the end of its transfer."""
        self._prefills: dict[int, PrefillRequest] = {}
        """Requests before their transfers, by number."""
        self._links = Links()
        """The links between each prefill pod and each decode pod."""
        self.prefill_pod = array("i", bytes(4 * requests))
        blank = array("d", bytes(8 * requests))
        self.prefilled_s = blank[:]
        """Times of the prefill pod's token."""
        self.seen_s = blank[:]
        """Times from which requests wait for blocks of their decode pod."""
        self.begin_s = blank[:]
        """Times at which transfers begin."""
        self.end_s = blank[:]
        """Times at which transfers end."""
        self.bytes = 0.0

    def pools(self) -> tuple[Timeline, Timeline]:
        """Returns the use of the prefill pods and of the decode pods."""
        timelines = [pod.timeline for pod in self._pods]
        prefill_pods = self._plan.prefill_pods
        return total_use(timelines[:prefill_pods]), total_use(timelines[prefill_pods:])

    def make_pod(self, context: PodContext, cost: CostModel, seed: str) -> PoolPod:
        """Makes the next pod: first the prefill pods, then the decode pods."""
        number = len(self._pods)
        if number not in self._decode_pods:
            context = replace(context, on_end=self._finish_prefill)
        pod = PoolPod(context, cost, seed, number=number, transfers=self)
        self._pods.append(pod)
        return pod

    def split(
        self, request: OfflineRequest, number: int, counts: dict[int, int]
    ) -> tuple[PrefillRequest, int]:
        """Splits a request between pod `number` and a decode pod.

        Returns the part that pod `number` computes, and the number of the decode pod.
        """
        decode_pod = self._choose(request, self._decode_pods, counts)
        counts[decode_pod] += 1
        prefill = PrefillRequest(request, self._pods[number], self._pods[decode_pod])
        request.remote = True
        self._prefills[request.number] = prefill
        self.prefill_pod[request.number] = number
        return prefill, decode_pod

    def _finish_prefill(self, request: OfflineRequest) -> None:
        prefill = self._prefills[request.number]
        heappush(self._endings, (prefill.last_s, prefill.pod.number))
        self.prefilled_s[prefill.number] = prefill.last_s
        self._schedule(prefill.last_s, prefill, ends=False)

    def begin(self, number: int, blocks: int, now_s: float) -> float:
        """Begins the transfer of a request's `blocks` blocks; returns the seconds until its end."""
        prefill = self._prefills.pop(number)
        pair = (prefill.pod.number, prefill.decode_pod.number)
        size = blocks * prefill.pod.blocks.block_size * self._plan.bytes_per_token
        end_s = self._links.begin(
            pair,
            now_s,
            sending_s=size / self._plan.bandwidth,
            latency_s=self._plan.latency_s,
        )
        self.bytes += size
        self.begin_s[number] = now_s
        self.end_s[number] = end_s
        self._schedule(end_s, prefill, ends=True)
        return end_s - now_s

    def _schedule(self, event_s: float, prefill: PrefillRequest, *, ends: bool) -> None:
        heappush(self._events, (event_s, prefill.number, ends, prefill))
        self.next_s = self._events[0][0]
        self._on_change(TRANSFERS_NUMBER, self)

    def advance(self, until_s: float) -> float:
        """Handles all events due by `until_s`; returns the time of the next event, or infinity."""
        while self.next_s <= until_s and self._events:
            event_s, number, ends, prefill = heappop(self._events)
            self.next_s = self._events[0][0] if self._events else inf
            if ends:
                pod = prefill.pod
                pod.free_prompt(prefill, event_s)
            else:
                pod = prefill.decode_pod
                self.seen_s[number] = pod.send(prefill.request, event_s)
            self._on_change(pod.number, pod)
        return self.next_s


class PoolPod(Pod):
    """A prefill or a decode pod.

    Prompts in transfer use its blocks, too, even while no step runs.
    """

    def __init__(
        self,
        context: PodContext,
        cost: CostModel,
        seed: str,
        *,
        number: int,
        transfers: Transfers,
    ) -> None:
        super().__init__(context, cost, seed)
        self.number = number
        self._transfers = transfers
        self._used_since_s = context.begin_s
        self._used_blocks = 0

    def has_connector(self) -> bool:
        """See `Pod`."""
        return True

    def go_on(self) -> None:
        """Handles the next event."""
        super().go_on()
        self._account(self.now_s)

    def free_prompt(self, prefill: PrefillRequest, now_s: float) -> None:
        """Frees the blocks of a prompt, which its decode pod has pulled."""
        self.scheduler.release(prefill)
        self._account(now_s)
        self.wake(now_s)

    def transfer_s(self, sequence: OfflineRequest) -> float:
        """Begins the transfer of a prompt; returns the seconds until its end."""
        blocks = transferred_blocks(sequence, self.blocks.block_size)
        return self._transfers.begin(sequence.number, blocks, self.now_s)

    def _account(self, now_s: float) -> None:
        """Adds the use of blocks since the last call."""
        if self._used_blocks:
            self.timeline.record(self._used_since_s, now_s, sequences=0, blocks=self._used_blocks)
        self._used_since_s = now_s
        self._used_blocks = self.blocks.capacity - self.blocks.free

    def _record_step(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        if self._paused:
            self._record_pauses()
        self.timeline.record(start_s, end_s, sequences=batch.sequences, blocks=0)
        if self._watch is not None:
            self._watch(self, batch, start_s, end_s)
