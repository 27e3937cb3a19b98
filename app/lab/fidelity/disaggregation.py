"""Prefill and decode on pods of their own, as with vLLM's NixlConnector (docs/fidelity.md).

A prefill pod computes a prompt and one token, which the client never sees. It keeps the prompt's
blocks until a decode pod has pulled them. The decode pod begins the transfer when it has blocks for
the whole prompt, computes the prompt's last token again, and so gives the client its first token.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any

from app.engine.core.batch import Batch
from app.lab.fidelity.pod import OfflineRequest, Pod, Timeline

NUMBER = -1
"""Number of the transfers among the pods: at one moment they come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    prefill_pods: int
    decode_pods: int
    bytes_per_token: float
    """Keys and values of a token, on all devices of an engine."""
    bandwidth: float = inf
    """Bytes a second from a prefill pod to a decode pod; their transfers wait for each other."""
    latency_s: float = 0.0
    """Added to each transfer; does not keep others waiting."""

    def __str__(self) -> str:
        latency = f" and {self.latency_s * 1000:g} ms" if self.latency_s else ""
        return (
            f"{self.bytes_per_token / 1e3:g} kB a token at {self.bandwidth / 1e9:g} GB/s{latency}"
        )


class PrefillRequest(OfflineRequest):
    """The part of a request that a prefill pod computes."""

    __slots__ = ("decode_pod", "pod", "request")
    remote_decode = True

    def __init__(self, request: OfflineRequest, pod: PoolPod, decode_pod: PoolPod) -> None:
        super().__init__(request.arrival_s, request.prompt_tokens, 1, request.number)
        self.path, self.node_tokens = request.path, request.node_tokens
        self.prefix_tokens, self.session, self.send_s = (
            request.prefix_tokens,
            request.session,
            request.send_s,
        )
        self.request, self.pod, self.decode_pod = request, pod, decode_pod


class Transfers:
    """Hands prompts from prefill to decode pods; columns of their times, in order of the requests.

    Advances as a pod does: `next_s` is its next event.
    """

    def __init__(
        self,
        plan: Disaggregation,
        choose: Callable[[OfflineRequest, Sequence[int], Mapping[int, int]], int],
        requests: int,
        begin_s: float,
        endings: list[tuple[float, int]],
        changed: Callable[[int, Pod | Transfers], None],
    ) -> None:
        """`choose` chooses decode pods. `endings` is a heap of ended requests: times and pods.
        `changed` receives number and part whose next event may be another; `NUMBER` is that of the
        transfers.
        """
        self._plan, self._choose, self._endings, self._changed = plan, choose, endings, changed
        self.due_s = self.next_s = inf
        self._pods: list[PoolPod] = []
        self._decode_pods = range(plan.prefill_pods, plan.prefill_pods + plan.decode_pods)
        self._events: list[tuple[float, int, bool, PrefillRequest]] = []
        """A heap: time, number of the request, True for the end of its transfer."""
        self._prefills: dict[int, PrefillRequest] = {}
        """Requests before their transfers, by number."""
        self._sent_s: dict[tuple[int, int], float] = {}
        """Time at which a pair of pods will have sent all bytes so far."""
        blank = array("d", bytes(8 * requests))
        self.prefill_pod = array("i", bytes(4 * requests))
        self.prefilled_s, self.seen_s = blank[:], blank[:]
        """Times of the prefill pod's token, and from which a request waits for blocks of its decode
        pod.
        """
        self.begin_s, self.end_s = blank[:], blank[:]
        self.bytes = 0.0
        self.pools = Timeline(begin_s), Timeline(begin_s)
        """Use of the prefill pods and of the decode pods."""

    def make_pod(self, *args: Any) -> Pod:
        """Makes the next pod, from the arguments of `Pod`."""
        number = len(self._pods)
        decodes = number in self._decode_pods
        pod = PoolPod(number, self, self.pools[decodes], *args)
        if not decodes:
            pod.ended = self.prefilled
        self._pods.append(pod)
        return pod

    def split(
        self, request: OfflineRequest, number: int, counts: dict[int, int]
    ) -> tuple[PrefillRequest, int]:
        """Returns what pod `number` computes of a request, and the decode pod for the rest."""
        decode = self._choose(request, self._decode_pods, counts)
        counts[decode] += 1
        its = PrefillRequest(request, self._pods[number], self._pods[decode])
        request.remote, self._prefills[request.number] = True, its
        self.prefill_pod[request.number] = number
        return its, decode

    def prefilled(self, request: OfflineRequest) -> None:
        its = self._prefills[request.number]
        heappush(self._endings, (its.last_s, its.pod.number))
        self.prefilled_s[its.number] = its.last_s
        self._add(its.last_s, its, False)

    def begin(self, number: int, blocks: int, now_s: float) -> float:
        """Begins the transfer of a request's `blocks` blocks; returns the seconds until its end."""
        its, plan = self._prefills.pop(number), self._plan
        pair, block_size = (its.pod.number, its.decode_pod.number), its.pod.blocks.block_size
        size = blocks * block_size * plan.bytes_per_token
        self._sent_s[pair] = sent_s = (
            max(now_s, self._sent_s.get(pair, -inf)) + size / plan.bandwidth
        )
        self.bytes += size
        self.begin_s[number], self.end_s[number] = now_s, sent_s + plan.latency_s
        self._add(self.end_s[number], its, True)
        return self.end_s[number] - now_s

    def _add(self, at_s: float, its: PrefillRequest, ends: bool) -> None:
        heappush(self._events, (at_s, its.number, ends, its))
        self.next_s = self._events[0][0]
        self._changed(NUMBER, self)

    def advance(self, until_s: float) -> float:
        while self.next_s <= until_s and self._events:
            at_s, number, ends, its = heappop(self._events)
            self.next_s = self._events[0][0] if self._events else inf
            pod = its.pod if ends else its.decode_pod
            if ends:
                pod.pulled(its, at_s)
            else:
                self.seen_s[number] = pod.send(its.request, at_s)
            self._changed(pod.number, pod)
        return self.next_s


class PoolPod(Pod):
    """A prefill or a decode pod.

    Its blocks are also taken while no step runs: by prompts in transfer.
    """

    def __init__(self, number: int, transfers: Transfers, pool: Timeline, *args: Any) -> None:
        super().__init__(*args)
        self.number, self._pulls = number, transfers
        self._timelines = self._timeline, pool
        self._since_s, self._used = pool.begin_s, 0

    def go_on(self) -> None:
        super().go_on()
        self._account(self.now_s)

    def pulled(self, its: PrefillRequest, now_s: float) -> None:
        """Frees the blocks of a prompt that its decode pod has now."""
        self.scheduler.release(its)
        self._account(now_s)
        self.wake(now_s)

    def transfer_s(self, sequence: OfflineRequest) -> float:
        missing = sequence.held - sequence.computed // self.blocks.block_size
        return self._pulls.begin(sequence.number, missing, self.now_s)

    def _account(self, now_s: float) -> None:
        """Adds the use of blocks since the last call."""
        for timeline in self._timelines if self._used else ():
            timeline.add(self._since_s, now_s, 0, self._used)
        self._since_s, self._used = now_s, self.blocks.capacity - self.blocks.free

    def _note(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        for timeline in self._timelines:
            timeline.add(start_s, end_s, batch.sequences, 0)
        if self._watch is not None:
            self._watch(self, batch, start_s, end_s)
