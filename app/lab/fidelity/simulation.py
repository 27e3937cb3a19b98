"""Simulates loads on one engine or on a fleet of engines, on virtual time."""

import gc
import math
import multiprocessing
import os
import signal
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, groupby
from operator import itemgetter
from random import Random
from threading import Thread
from typing import TypeVar

from app.engine.core.step_cost import CostModel, StepCost
from app.lab.fidelity import disaggregation as apart
from app.lab.fidelity.pod import OfflineRequest, Pod, Timeline, Watch, shared_keys
from app.lab.load import autoscale
from app.lab.load.loads import LONGEST_S, LoadTrace
from app.lab.load.policies import LEAST_REQUESTS, PREFIX_AWARE, RANDOM, PrefixAware, make_policy
from app.lab.load.report import latencies
from config import ConfigError
from config.profile import EngineLimits, Profile

OFTEN = 1024
"""Requests between two progress calls."""
PARENT_EVERY_S = 0.5
"""Seconds between two looks of a worker for its parent; loky's workers have no handle of their
parent.
"""
SLICE_S = 1.0
"""Virtual seconds between two progress calls after all requests are sent."""

Job = TypeVar("Job")
Result = TypeVar("Result")
Progress = Callable[[int], None]
"""Receives the number of finished requests."""
StepCosts = Callable[[Profile], CostModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    profile: Profile
    pods: int = 1
    policy: str = RANDOM
    in_flight: int | None = None
    """Most requests of the client at a time, over all pods; None is no limit."""
    turnaround_s: float = 0.0
    """Seconds from the last token of a request until the next request takes its place."""
    seed: int = 1
    step_costs: StepCosts | None = None
    disaggregation: apart.Disaggregation | None = None
    """Splits `pods` into prefill pods, which come first, and decode pods."""
    autoscaling: autoscale.Autoscaling | None = None
    """With it `pods` is the number at the start, within the bounds of the policy."""


class SimulationOutcome:
    """Results of a load under a plan: columns in order of its requests, and sums."""

    def __init__(self, load: LoadTrace, plan: SimulationPlan) -> None:
        self.load, self.plan = load, plan
        blank = array("d", bytes(8 * len(load)))
        self.send_s: array[float] = array("d", blank)
        self.first_s: array[float] = array("d", blank)
        self.last_s: array[float] = blank
        self.pod: array[int] = array("i", bytes(4 * len(load)))
        self.steps = 0
        self.preemptions = 0
        self.cached_tokens = 0
        self.timeline = Timeline(load.arrival_s[0] if load else 0.0)
        self.transfers: apart.Transfers | None = None
        """Only with disaggregation; `pod` is the decode pod then."""
        self.lives: list[autoscale.Life] = []
        """Pods of an autoscaled fleet, by number."""

    @property
    def pods(self) -> int:
        """Number of pods; of an autoscaled fleet all that ever were."""
        return len(self.lives) or self.plan.pods

    @property
    def length_s(self) -> float:
        """Time from the first request to the last token."""
        return max(self.last_s) - min(self.send_s)

    def latencies(self) -> tuple[list[float], list[float], list[float]]:
        """Returns TTFT, ITL and E2E in seconds, as `report.latencies`."""
        return latencies(self.send_s, self.first_s, self.last_s, self.load.output_tokens)


class Simulation:
    """All pods on one virtual time.

    A heap has the next work of each pod, so that idle pods cost nothing.
    """

    def __init__(
        self, load: LoadTrace, plan: SimulationPlan, progress: Progress, watch: Watch | None = None
    ) -> None:
        self._load, self._plan, self._progress = load, plan, progress
        self.outcome = out = SimulationOutcome(load, plan)
        grouped, split = bool(load.group or load.session), plan.disaggregation
        self._endings: list[tuple[float, int]] = []
        """Heap of the known ends of requests: times and pods."""
        if split is not None:
            # Of the policies only prefix-aware looks at more than requests in flight: it is for
            # prompts.
            name, rng = plan.policy, Random(f"{plan.seed}/decode")
            policy = make_policy(
                LEAST_REQUESTS if name == PREFIX_AWARE else name, self._cached, rng
            )
            kept = len(load), out.timeline.begin_s, self._endings, self._look
            out.transfers = apart.Transfers(split, policy.choose, *kept)
        self._transfers = out.transfers
        self._fixed = grouped, out.timeline, self._ended, watch
        self.pods: list[Pod] = []
        self._counts: dict[int, int] = {}
        self._autoscaler: autoscale.Autoscaler | None = None
        self._unread: defaultdict[int, list[OfflineRequest]] = defaultdict(list)
        """Requests by pod whose first token is still to be scraped."""
        self._numbers: Sequence[int] = range(plan.pods if split is None else split.prefill_pods)
        """Pods that get requests first."""
        if plan.autoscaling is None:
            for _ in range(plan.pods):
                self._add_pod()
        else:
            begin_s, calls = out.timeline.begin_s, (self._add_pod, self._sample)
            self._autoscaler = autoscale.Autoscaler(
                plan.autoscaling, plan.pods, begin_s, plan.seed, *calls
            )
            self._numbers = self._autoscaler.ready
        self._policy = make_policy(plan.policy, self._cached, Random(f"{plan.seed}/{plan.policy}"))
        self._next_turns = load.next_turns()
        free = watch is None and plan.in_flight is None and not self._next_turns and split is None
        free = free and plan.autoscaling is None
        self._is_blind = free and not isinstance(self._policy, PrefixAware)
        """True when the choice of pods, and so each pod, depends on nothing but the load."""
        self._due: list[tuple[float, int]] = []
        """Heap of times and pods with work; an entry that differs from the pod's `due_s` is
        outdated.
        """
        self._places = None if plan.in_flight is None else [-math.inf] * plan.in_flight
        """Heap of times at which the client's places are free, as far as known; None without a
        limit.
        """
        self._turns: list[tuple[float, int]] = []
        """Heap of turns that follow known answers: times and requests."""
        self._done = 0

    def run(self) -> SimulationOutcome:
        out, numbers, policy = self.outcome, range(len(self._load)), self._policy
        if self._is_blind and not isinstance(policy, PrefixAware):
            # One pod after another, as the state of one pod fits into the processor's caches.
            for number in numbers:
                out.pod[number] = policy.choose(None, self._numbers, self._counts)
            for _, its in groupby(sorted(numbers, key=out.pod.__getitem__), out.pod.__getitem__):
                self._play(its)
        elif self._next_turns:
            self._play_sessions()
        else:
            self._play(numbers)
        out.steps = sum(pod.steps for pod in self.pods)
        out.preemptions = sum(pod.scheduler.preemptions for pod in self.pods)
        prefilling = self.pods if self._transfers is None else self.pods[: len(self._numbers)]
        out.cached_tokens = sum(pod.cached_tokens for pod in prefilling)
        if self._autoscaler is not None:
            last_s = dict(sorted(zip(out.pod, out.last_s, strict=True), key=itemgetter(1)))
            out.lives = self._autoscaler.end(max(out.last_s), last_s)
        return out

    def _add_pod(self) -> None:
        plan, number = self._plan, len(self.pods)
        cost = (
            StepCost(plan.profile.cost)
            if plan.step_costs is None
            else plan.step_costs(plan.profile)
        )
        make = Pod if self._transfers is None else self._transfers.make_pod
        self.pods.append(make(plan.profile, cost, f"{plan.seed}/{number}", *self._fixed))
        self._counts[number] = 0

    def _sample(self, number: int, at_s: float) -> autoscale.Sample:
        """Returns the metrics of a pod that has run up to `at_s`."""
        oldest_s = at_s - autoscale.TTFT_WINDOW_S
        its = self._unread[number] = [
            it for it in self._unread[number] if not 0 <= it.first_s <= oldest_s
        ]
        ttft_s = [it.first_s - it.send_s for it in its if 0 <= it.first_s <= at_s]
        quantiles = {
            name: autoscale.histogram_quantile(share, ttft_s)
            for name, share in autoscale.TTFT_SHARES.items()
        }
        return self.pods[number].gauges() | quantiles

    def _play(self, numbers: Iterable[int]) -> None:
        arrival_s = self._load.arrival_s
        for place, number in enumerate(numbers):
            self._arrive(number, arrival_s[number])
            if not place % OFTEN:
                self._progress(self._done)
        while self._due:
            due_s = self._due[0][0]
            self._settle(max(due_s + SLICE_S, math.nextafter(due_s, math.inf)))
            self._progress(self._done)

    def _play_sessions(self) -> None:
        """Goes from event to event, as any event may end an answer that a turn follows."""
        arrival_s, due, turns = self._load.arrival_s, self._due, self._turns
        later = set(self._next_turns.values())
        firsts = deque(number for number in range(len(arrival_s)) if number not in later)
        for event in count():
            arrives_s = arrival_s[firsts[0]] if firsts else math.inf
            turn_s = turns[0][0] if turns else math.inf
            if due and due[0][0] < min(arrives_s, turn_s):
                self._settle(math.nextafter(due[0][0], math.inf))
            elif turn_s < arrives_s:
                self._arrive(heappop(turns)[1], turn_s)
            elif firsts:
                self._arrive(firsts.popleft(), arrives_s)
            else:
                break
            if not event % OFTEN:
                self._progress(self._done)

    def _arrive(self, number: int, arrival_s: float) -> None:
        """Sends a request that is to be sent at `arrival_s`, after all earlier events."""
        load = self._load
        request = OfflineRequest(
            arrival_s, load.input_tokens[number], load.output_tokens[number], number
        )
        if load.group:
            request.path, request.prefix_tokens = load.path(number), load.prefix_tokens[number]
            request.node_tokens = load.node_tokens
        if load.session:
            request.session = load.session[number]
        request.send_s = send_s = self._send_s(arrival_s)
        if self._autoscaler is not None and send_s > load.arrival_s[0] + LONGEST_S:
            raise ConfigError(
                f"{load.row(number)}: with --autoscale it must not come after {LONGEST_S:,} s"
            )
        self._settle(send_s)
        self._send(request)

    def _cached(self, request: OfflineRequest) -> dict[int, float]:
        """Returns the cached blocks of a request's prompt by pod, like an indexer without delay."""
        keys = shared_keys(request, self._plan.profile.engine.block_size, request.prompt_tokens)
        return (
            {number: self.pods[number].cached_blocks(keys) for number in self._numbers}
            if keys
            else {}
        )

    def _send_s(self, arrival_s: float) -> float:
        """Returns the time of sending:

        `arrival_s`, or later if the client has no free place then.
        """
        places = self._places
        if places is None:
            return arrival_s
        while not places or (places[0] > arrival_s and self._due and self._due[0][0] < places[0]):
            if self._autoscaler is not None and self._autoscaler.next_s <= self._due[0][0]:
                self._autoscaler.go_on()
                continue
            due_s, number = heappop(self._due)  # this step may end a request before the known ends
            self._advance(number, due_s, due_s)
        return max(arrival_s, heappop(places))

    def _settle(self, until_s: float) -> None:
        scaler = self._autoscaler
        while scaler is not None and scaler.next_s < until_s:
            self._run_pods(scaler.next_s)
            scaler.go_on()
        self._run_pods(until_s)

    def _run_pods(self, until_s: float) -> None:
        due, just_before_s = self._due, math.nextafter(until_s, -math.inf)
        while due and due[0][0] < until_s:
            due_s, number = heappop(due)
            # With transfers any event of a pod may be one of another pod.
            self._advance(number, due_s, just_before_s if self._transfers is None else due_s)

    def _advance(self, number: int, due_s: float, until_s: float) -> None:
        part = self.pods[number] if self._transfers is None or number >= 0 else self._transfers
        if part.due_s == due_s:
            part.due_s = next_s = part.advance(until_s)
            if next_s < math.inf:
                heappush(self._due, (next_s, number))

    def _look(self, number: int, part: Pod | apart.Transfers) -> None:
        if part.next_s != part.due_s:
            part.due_s = part.next_s
            heappush(self._due, (part.due_s, number))

    def _send(self, request: OfflineRequest) -> None:
        out, endings, counts = self.outcome, self._endings, self._counts
        if not self._is_blind:
            while endings and endings[0][0] <= request.send_s:
                counts[heappop(endings)[1]] -= 1
            out.pod[request.number] = chosen = self._policy.choose(request, self._numbers, counts)
            counts[chosen] += 1
            if self._autoscaler is not None:
                self._unread[chosen].append(request)
        number = out.pod[request.number]
        if self._transfers is not None:
            request, out.pod[request.number] = self._transfers.split(request, number, counts)
        pod = self.pods[number]
        pod.send(request, request.send_s)
        self._look(number, pod)

    def _ended(self, request: OfflineRequest) -> None:
        out, number = self.outcome, request.number
        out.send_s[number], out.first_s[number] = request.send_s, request.first_s
        out.last_s[number] = last_s = request.last_s
        if not self._is_blind:
            heappush(self._endings, (last_s, out.pod[number]))
        if self._places is not None:
            heappush(self._places, last_s + self._plan.turnaround_s)
        if (turn := self._next_turns.get(number)) is not None:
            heappush(self._turns, (last_s + self._load.think_s[turn], turn))
        self._done += 1


def simulate(
    load: LoadTrace,
    plan: SimulationPlan,
    progress: Progress = lambda done: None,
    watch: Watch | None = None,
) -> SimulationOutcome:
    """Simulates `load`. `progress` receives the number of finished requests, `watch` each step."""
    gc.disable()  # millions of objects without reference cycles: collections would find nothing
    try:
        return Simulation(load, plan, progress, watch).run()
    finally:
        gc.enable()


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yields a pool for runs that are independent; None for one process.

    An exception ends all runs.
    """
    if processes <= 1:
        yield None
        return
    # "spawn", as a fork would copy the threads and event loops of the caller.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, depend, (os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


def each(
    pool: ProcessPoolExecutor | None, work: Callable[[Job], Result], jobs: Iterable[Job]
) -> Iterator[Result]:
    """Returns the results in the order of `jobs`, for which a pool works at once."""
    if pool is None:
        return map(work, jobs)
    # `pool.map` would cancel them on Ctrl-C, and an ended pool prints a traceback for a cancelled
    # one.
    futures = [pool.submit(work, job) for job in jobs]
    return (future.result() for future in futures)


def depend(parent: int) -> None:
    """Leaves Ctrl-C, which reaches the whole terminal, to the parent, and ends a worker with its
    parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_EVERY_S)
        os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()


def check_engine(at: EngineLimits, origin: str) -> None:
    """Raises ConfigError, which begins with `origin`, for limits with which an engine cannot work."""
    longest = at.max_model_len or 1
    blocks = -(-longest // at.block_size) + 1
    budget = f"max-num-batched-tokens {at.max_num_batched_tokens} must not be less than"
    rule = ""
    if at.max_num_batched_tokens < at.max_num_seqs:
        rule = f"{budget} max-num-seqs {at.max_num_seqs}, or some sequences would never get a token"
    elif at.num_gpu_blocks < blocks:
        rule = f"{at.num_gpu_blocks} blocks of {at.block_size} tokens must hold a prompt of"
        rule += f" max-model-len {longest}, and the null block: {blocks} do"
    elif not at.enable_chunked_prefill and at.max_num_batched_tokens < longest:
        rule = f"without chunked prefill {budget} max-model-len {longest}"
    if rule:
        raise ConfigError(f"{origin}: {rule}")


def longest_tokens(at: EngineLimits) -> int:
    longest = (at.num_gpu_blocks - 1) * at.block_size
    if not at.enable_chunked_prefill:
        longest = min(longest, at.max_num_batched_tokens)
    return longest if at.max_model_len is None else min(longest, at.max_model_len)
