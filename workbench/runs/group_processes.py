"""Groups of pods in separate processes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from workbench.load.loads import ROW_COLUMNS, LoadTrace
from workbench.runs.fewest_requests import PodGroup
from workbench.runs.pod import PodContext, PodFigures
from workbench.runs.pod_maker import PodMaker, RequestMaker, StepCosts
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.token_gaps import TokenGaps
from workbench.runs.workers import Messages, receive, server_processes

GROUP_RATE = 500.0
"""Least requests per second of a process. Each second has about 80 runs, and a run costs as much as
a few requests do.
"""
MIN_LENGTH_S = 1e-9
"""Least length of a load, in seconds, for its rate."""
MAX_UNANSWERED = 2
"""Runs of a group at a time: while one is under way, requests are sent to the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A group of pods, for the process that makes them."""

    context: PodContext
    step_costs: StepCosts | None
    seed: int
    pods: range
    """Numbers of the pods in the fleet."""
    load: LoadTrace
    """The load of the fleet, without its rows."""
    priorities: Mapping[str, int]

    def split(self, size: int) -> list[GroupPlan]:
        """Returns plans of groups of `size` pods, the last one perhaps smaller."""
        starts = range(0, len(self.pods), size)
        return [replace(self, pods=self.pods[start : start + size]) for start in starts]


class Run(NamedTuple):
    """Requests of a group, and how far its pods then run; see `PodGroup.run`."""

    numbers: array[int]
    pods: array[int]
    """Pod of each request, counted from the first one of the group."""
    earliest_ends_s: array[float]
    columns: Mapping[str, array[float]]
    """Rows of the requests, by the names of `ROW_COLUMNS`."""
    images: Sequence[tuple[int, ...]]
    adapters: Sequence[str | None]
    before_s: float
    until_s: float


class Finished(NamedTuple):
    """Requests that have ended, with the times of their first and last tokens."""

    numbers: array[int]
    first_s: array[float]
    last_s: array[float]


class RunResult(NamedTuple):
    """Result of a run of a group."""

    end_s: array[float]
    """Times of ends that are known now."""
    end_pods: array[int]
    """Pods of these ends, counted from the first one of the group."""
    finished: Finished
    bound_s: float
    preemptions: int


class GroupResult(NamedTuple):
    """Sums of a group over all its runs."""

    figures: list[PodFigures]
    gaps: TokenGaps


class GroupProcess:
    """A `Group` whose pods run in another process."""

    def __init__(
        self,
        connection: Messages,
        plan: GroupPlan,
        requests: RequestMaker,
        finish: Callable[[Finished], None],
    ) -> None:
        """`finish` receives the requests that have ended."""
        self._connection = connection
        self._first_pod = plan.pods.start
        self._requests = requests
        self._finish = finish
        load = requests.load
        self._columns = {name: getattr(load, name) for name in ROW_COLUMNS if getattr(load, name)}
        self._bound_s = inf
        """The `Group.bound_s` of the latest result."""
        self._unanswered: deque[float] = deque()
        """Time before which none of the requests of a run ends, by run."""
        self.preemptions = 0
        self._begin_run()

    def _begin_run(self) -> None:
        self._numbers = array("i")
        self._pods = array("i")
        self._earliest_ends_s = array("d")

    @property
    def bound_s(self) -> float:
        """See `Group`."""
        return min([self._bound_s, *self._unanswered])

    def send(self, number: int, pod: int, end_s: float) -> None:
        """See `Group`."""
        self._numbers.append(number)
        self._pods.append(pod - self._first_pod)
        self._earliest_ends_s.append(end_s)

    def run(self, before_s: float, until_s: float) -> None:
        """See `Group`; returns before the pods have run."""
        numbers = self._numbers
        columns = {
            name: array(column.typecode, map(column.__getitem__, numbers))
            for name, column in self._columns.items()
        }
        images = self._requests.load.images
        adapters = self._requests.adapters
        run = Run(
            numbers=numbers,
            pods=self._pods,
            earliest_ends_s=self._earliest_ends_s,
            columns=columns,
            images=[images[number] for number in numbers if images],
            adapters=[adapters[number] for number in numbers if adapters],
            before_s=before_s,
            until_s=until_s,
        )
        self._connection.send(run)
        self._unanswered.append(min(self._earliest_ends_s, default=inf))
        self._begin_run()

    def ends(self) -> Iterable[tuple[float, int]]:
        """See `Group`; waits for the result of the run before the latest one."""
        if len(self._unanswered) < MAX_UNANSWERED:
            return ()
        return self._receive()

    def _receive(self) -> Iterable[tuple[float, int]]:
        result: RunResult = receive(self._connection)
        self._unanswered.popleft()
        self._bound_s = result.bound_s
        self.preemptions = result.preemptions
        self._finish(result.finished)
        pods = [self._first_pod + pod for pod in result.end_pods]
        return zip(result.end_s, pods, strict=True)

    def close(self) -> GroupResult:
        """Waits for all runs, and returns the sums."""
        while self._unanswered:
            self._receive()
        self._connection.send(None)
        result: GroupResult = receive(self._connection)
        return result


def max_groups(load: LoadTrace) -> int:
    """Returns the most processes that a load is worth."""
    length_s = load.arrival_s[-1] - load.arrival_s[0]
    return int(len(load) / max(length_s, MIN_LENGTH_S) / GROUP_RATE)


def ignore_end(request: OfflineRequest) -> None:
    """Does nothing: the context of a `GroupPlan`, as each process follows its own requests."""


@contextmanager
def group_processes(
    plans: Sequence[GroupPlan], requests: RequestMaker, finish: Callable[[Finished], None]
) -> Iterator[list[GroupProcess]]:
    """Yields groups in processes, which end with the block; see `GroupProcess`."""
    with server_processes(GroupServer, plans) as connections:
        yield [
            GroupProcess(connection, plan, requests, finish)
            for connection, plan in zip(connections, plans, strict=True)
        ]


class GroupServer:
    """Answers the messages of a `GroupProcess`."""

    def __init__(self, plan: GroupPlan) -> None:
        self._finished: list[OfflineRequest] = []
        known_ends: list[float] = []
        context = replace(plan.context, on_end=self._finished.append, known_ends=known_ends)
        maker = PodMaker(context, plan.step_costs, plan.seed)
        self._gaps = context.gaps
        self._pods = [maker.make(number) for number in plan.pods]
        self._requests = RequestMaker(plan.load, (), plan.priorities)
        self._group = PodGroup(self._pods, known_ends, self._requests)

    def answer(self, run: Run | None) -> RunResult | GroupResult:
        """Runs the pods; without a run, returns the sums over all runs."""
        if run is None:
            return GroupResult([pod.figures() for pod in self._pods], self._gaps)
        self._send(run)
        self._group.run(run.before_s, run.until_s)
        ends = self._group.ends()
        finished = self._finished
        result = RunResult(
            end_s=array("d", [end_s for end_s, _ in ends]),
            end_pods=array("i", [pod for _, pod in ends]),
            finished=Finished(
                array("i", [request.number for request in finished]),
                array("d", [request.first_s for request in finished]),
                array("d", [request.last_s for request in finished]),
            ),
            bound_s=self._group.bound_s,
            preemptions=self._group.preemptions,
        )
        finished.clear()
        return result

    def _send(self, run: Run) -> None:
        load = self._requests.load
        for name, column in run.columns.items():
            setattr(load, name, column)
        load.images = list(run.images)
        self._requests.adapters = run.adapters
        rows = zip(run.numbers, run.pods, run.earliest_ends_s, strict=True)
        for row, (number, pod, end_s) in enumerate(rows):
            request = self._requests.make(row, load.arrival_s[row])
            request.number = number
            self._group.send_request(request, pod, end_s)
