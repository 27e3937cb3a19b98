"""Fleets whose requests go to the pods with the fewest requests in flight.

Such a choice depends on the ends of earlier requests alone, not on the other state of pods. A fleet
of a thousand pods does not fit into the caches of a processor, so that each visit of a pod waits
for memory. `FewestRequestsFleet` therefore alternates between two tasks. First it chooses the pods
of requests, up to the earliest time at which an end may come that is still unknown. Then it visits
the pods that may soon have an unknown end. Each pod runs as far as no later request can change:
a request reaches the scheduler only after the time of the front. The steps under way then fix more
ends, so that ends are known about 25 ms in advance.

`PodGroup` runs the pods. A large fleet has several groups in processes (`group_processes`), which
run while the fleet chooses the pods of the next requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf, nextafter
from typing import NamedTuple, Protocol

from workbench.load.loads import LoadTrace
from workbench.load.policies import FewestRequests
from workbench.runs.pod import Pod
from workbench.runs.pod_maker import RequestMaker
from workbench.runs.prefix_blocks import OfflineRequest

MAX_RUN_S = 1.0
"""Virtual seconds that pods run at a time after all requests are sent."""
EARLY_STEPS = 2
"""Pods that may have an unknown end within the least time of this many steps run together. More
steps give fewer and longer runs, but more visits of pods.
"""
SENT_SHARE = 0.75
"""Share of the time without unknown ends for which requests are sent while groups run, which
extends this time.
"""


class Group(Protocol):
    """Pods that run when one of their requests may end."""

    @property
    def bound_s(self) -> float:
        """A time before which all ends are known of the requests that were sent so far."""

    @property
    def preemptions(self) -> int:
        """Number of preemptions so far."""

    def send(self, number: int, pod: int, end_s: float) -> None:
        """Sends a request of the load to a pod; the request does not end before `end_s`."""

    def run(self, before_s: float, until_s: float) -> None:
        """Runs the pods that may have an unknown end before `before_s`, up to `until_s`."""

    def ends(self) -> Iterable[tuple[float, int]]:
        """Returns the times and pods of ends, each end once."""


class PodGroup:
    """A group of pods of this process."""

    def __init__(
        self, pods: Sequence[Pod], known_ends: list[float], requests: RequestMaker
    ) -> None:
        """The pods append to `known_ends`."""
        self._pods = pods
        self._known_ends = known_ends
        self._requests = requests
        self._sent: list[list[OfflineRequest]] = [[] for _ in pods]
        """Requests for the next run of a pod, by pod."""
        self._bounds_s = array("d", [inf]) * len(pods)
        """Times before which all ends are known, by pod."""
        self._due: list[tuple[float, int]] = []
        """Heap of these times and pods; an entry that differs from the pod's time is outdated."""
        self._ends: list[tuple[float, int]] = []
        self.preemptions = 0

    @property
    def bound_s(self) -> float:
        """See `Group`."""
        return self._due[0][0] if self._due else inf

    def send(self, number: int, pod: int, end_s: float) -> None:
        """See `Group`."""
        request = self._requests.make(number, self._requests.load.arrival_s[number])
        self.send_request(request, pod, end_s)

    def send_request(self, request: OfflineRequest, pod: int, end_s: float) -> None:
        """Sends a request, which does not end before `end_s`."""
        self._sent[pod].append(request)
        if end_s < self._bounds_s[pod]:
            self._bounds_s[pod] = end_s
            heappush(self._due, (end_s, pod))

    def run(self, before_s: float, until_s: float) -> None:
        """See `Group`."""
        due = self._due
        ends = self._ends
        known_ends = self._known_ends
        bounds = []
        while due and due[0][0] < before_s:
            bound_s, number = heappop(due)
            if bound_s != self._bounds_s[number]:
                continue
            pod = self._pods[number]
            requests = self._sent[number]
            for request in requests:
                pod.send(request, request.send_s)
            requests.clear()
            preemptions = pod.scheduler.preemptions
            pod.advance(until_s)
            self.preemptions += pod.scheduler.preemptions - preemptions
            self._bounds_s[number] = bound_s = pod.foresee()
            for end_s in known_ends:
                ends.append((end_s, number))
            known_ends.clear()
            if bound_s < inf:
                bounds.append((bound_s, number))
        for bound in bounds:  # only now, as each pod runs once
            heappush(due, bound)

    def ends(self) -> Iterable[tuple[float, int]]:
        """See `Group`."""
        ends = self._ends
        self._ends = []
        return ends


class LeastTimes(NamedTuple):
    """Times in seconds that work takes at least."""

    front_s: float
    """From sending a request until the scheduler sees it."""
    step_s: float


class FewestRequestsFleet:
    """Chooses the pod of each request of a load, and runs the pods."""

    def __init__(
        self,
        load: LoadTrace,
        groups: Sequence[Group],
        *,
        policy: FewestRequests,
        pod_of: array[int],
        group_pods: int,
        least: LeastTimes,
    ) -> None:
        """Each group has `group_pods` pods, the last one perhaps fewer.

        `pod_of` receives the pod of each request.
        """
        self._load = load
        self._groups = groups
        self._policy = policy
        self._pod_of = pod_of
        self._group_pods = group_pods
        self._front_s = least.front_s
        self._step_s = least.step_s
        self._endings: list[tuple[float, int]] = []
        """Heap of the known ends of requests that still count as in flight: times and pods."""

    @property
    def preemptions(self) -> int:
        """Number of preemptions so far."""
        return sum(group.preemptions for group in self._groups)

    def play(self) -> Iterator[float]:
        """Simulates the load; yields the virtual time of each run of the groups."""
        groups = self._groups
        arrival_s = self._load.arrival_s
        number = 0
        now_s = -inf
        while True:
            bound_s = min(group.bound_s for group in groups)
            if number == len(arrival_s):
                if bound_s == inf:
                    return
                now_s = bound_s + MAX_RUN_S
            else:
                if len(groups) > 1 and -inf < now_s < bound_s < inf:
                    bound_s = now_s + SENT_SHARE * (bound_s - now_s)
                number = self._send(number, bound_s)
                if number < len(arrival_s):
                    now_s = arrival_s[number]
            until_s = nextafter(now_s + self._front_s, -inf)
            for group in groups:
                group.run(now_s + EARLY_STEPS * self._step_s, until_s)
            for group in groups:
                for end in group.ends():
                    heappush(self._endings, end)
            yield now_s

    def _send(self, number: int, bound_s: float) -> int:
        """Sends requests from `number` on, until an unknown end may come before the next one.

        Returns the number of the first request that is not sent. `bound_s` is the `Group.bound_s`
        of all groups.
        """
        load = self._load
        arrival_s = load.arrival_s
        endings = self._endings
        policy = self._policy
        for following in range(number, len(arrival_s)):
            send_s = arrival_s[following]
            if send_s > bound_s:
                return following
            while endings and endings[0][0] <= send_s:
                policy.end(heappop(endings)[1])
            pod = policy.choose()
            self._pod_of[following] = pod
            end_s = send_s + self._front_s + load.output_tokens[following] * self._step_s
            bound_s = min(bound_s, end_s)
            self._groups[pod // self._group_pods].send(following, pod, end_s)
        return len(arrival_s)
