"""Simulates loads on one engine or on a fleet of engines, on virtual time."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import chain, count
from operator import itemgetter
from random import Random
from typing import NamedTuple

from app.core.base.metrics.table import FIRST_TOKEN
from app.extensions.plugins.policies import Sample
from app.shared.statistics import histogram_quantile, latencies
from config import ConfigError
from workbench.engine.costs import rules_of
from workbench.engine.steps import Profile, SchedulerRules
from workbench.load.autoscaler import (
    TTFT_SHARES,
    TTFT_WINDOW_S,
    Autoscaler,
    Autoscaling,
)
from workbench.load.loads import MAX_LOAD_S, LoadTrace
from workbench.load.pod_lives import Life
from workbench.load.policies import (
    LEAST_REQUESTS,
    PREFIX_AWARE,
    RANDOM,
    FewestRequests,
    PrefixAware,
    make_policy,
)
from workbench.load.priorities import PriorityClass
from workbench.load.progress import Progress, ignore_progress
from workbench.runs.adapters import AdapterPlan
from workbench.runs.disaggregation import TRANSFERS_NUMBER, Disaggregation, Transfers
from workbench.runs.fewest_requests import FewestRequestsFleet, Group, LeastTimes, PodGroup
from workbench.runs.fleet_parts import (
    MIN_DIVIDED_REQUESTS,
    FleetPart,
    PartResult,
    parts,
    route,
)
from workbench.runs.group_processes import (
    Finished,
    GroupPlan,
    group_processes,
    ignore_end,
    max_groups,
)
from workbench.runs.kv_tiers import KvTier, TierRules, TierUse, total_uses
from workbench.runs.pod import Pod, PodContext, PodFigures, Watch
from workbench.runs.pod_maker import PodMaker, RequestMaker, StepCosts
from workbench.runs.prefix_blocks import OfflineRequest, shared_keys
from workbench.runs.timeline import Timeline, total_use
from workbench.runs.token_gaps import LoggedGaps, TokenGaps
from workbench.runs.workers import map_large_jobs, without_collector, worker_pool

REQUESTS_PER_PROGRESS = 1024
"""Requests between two progress calls."""
PROGRESS_EVERY_S = 1.0
"""Virtual seconds between two progress calls after all requests are sent."""
MAX_STANDSTILL_S = 600.0
"""Virtual seconds between two looks at whether requests end."""
MAX_STANDSTILL_PREEMPTIONS = 10_000
"""Maximum number of preemptions between two requests that end, if these take so long."""


class Standstill(NamedTuple):
    """The number of ended requests at a check, and the preemptions at the first one with it."""

    finished: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """A fleet, and the client that sends a load to it."""

    profile: Profile
    rules: SchedulerRules = field(default_factory=partial(rules_of, "", SchedulerRules))
    """Rules of the simulated version of vLLM."""
    pods: int = 1
    policy: str = LEAST_REQUESTS
    in_flight: int | None = None
    """Most requests of the client at a time, over all pods; None is no limit."""
    turnaround_s: float = 0.0
    """Seconds from the last token of a request until the next request takes its place."""
    seed: int = 1
    step_costs: StepCosts | None = None
    disaggregation: Disaggregation | None = None
    """Splits `pods` into prefill pods, which come first, and decode pods."""
    autoscaling: Autoscaling | None = None
    """With autoscaling `pods` is the number at the start, within the bounds of the policy."""
    tiers: tuple[KvTier, ...] = ()
    """Tiers that keep the blocks of prompts, the host's memory first; each pod has its own."""
    tier_rules: TierRules = TierRules()
    adapters: AdapterPlan | None = None
    priorities: tuple[PriorityClass, ...] = ()
    """Classes of requests that the engines serve by priority."""


class SimulationOutcome:
    """Results of a load under a plan: columns in order of its requests, and sums."""

    def __init__(self, load: LoadTrace, plan: SimulationPlan) -> None:
        self.load = load
        self.plan = plan
        blank = array("d", bytes(8 * len(load)))
        self.send_s: array[float] = blank[:]
        self.first_s: array[float] = blank[:]
        self.last_s: array[float] = blank[:]
        self.pod: array[int] = array("i", bytes(4 * len(load)))
        self.steps = 0
        self.preemptions = 0
        self.cached_tokens = 0
        self.timeline = Timeline(load.arrival_s[0] if load else 0.0)
        self.gaps: TokenGaps = TokenGaps()
        self.transfers: Transfers | None = None
        """Only with disaggregation; `pod` is the decode pod then."""
        self.tier_uses: list[TierUse] = []
        self.lives: list[Life] = []
        """Pods of an autoscaled fleet, by number."""

    @property
    def pods(self) -> int:
        """Number of pods; of an autoscaled fleet all that ever were."""
        return len(self.lives) or self.plan.pods

    @property
    def length_s(self) -> float:
        """Time from the first request to the last token."""
        return max(self.last_s) - min(self.send_s)

    @cached_property
    def per_s(self) -> float:
        """Factor from a sum over the run to a mean per second; 0 for a run without length."""
        length_s = self.length_s
        return 1 / length_s if length_s > 0 else 0.0

    def latencies(self) -> Iterator[array[float]]:
        """Yields TTFT, TPOT and E2E in seconds, one value per request."""
        return latencies(self.send_s, self.first_s, self.last_s, self.load.output_tokens)


class Simulation:
    """All pods on one virtual time.

    A heap has the next work of each pod, so that idle pods cost nothing.
    """

    def __init__(
        self,
        load: LoadTrace,
        plan: SimulationPlan,
        progress: Progress,
        watch: Watch | None = None,
        part: FleetPart | None = None,
    ) -> None:
        """`progress` receives the number of finished requests, `watch` each step.

        With `part`, `load` and `plan` describe only that part of a fleet.
        """
        self._load = load
        self._plan = plan
        self._progress = progress
        self._part = part
        self.outcome = SimulationOutcome(load, plan)
        largest_image = max(chain.from_iterable(load.images), default=0)
        if part is not None:
            self.outcome.timeline.begin_s = part.begin_s
            largest_image = part.largest_image
        if watch is not None:
            self.outcome.gaps = LoggedGaps()
        self._endings: list[tuple[float, int]] = []
        """Heap of the known ends of requests: times and pods."""
        self._transfers: Transfers | None = None
        if plan.disaggregation is not None:
            self._transfers = self._make_transfers(plan.disaggregation)
            self.outcome.transfers = self._transfers
        self._followers = load.followers()
        has_plain_fleet = plan.disaggregation is None and plan.autoscaling is None
        is_apart = (
            watch is None and plan.in_flight is None and not self._followers and has_plain_fleet
        )
        """True if the load is open, and pods do not depend on each other."""
        policy = plan.policy
        if plan.pods == 1 and plan.autoscaling is None:
            policy = RANDOM  # a single pod leaves no choice, and a blind choice is faster
        self._known_ends: list[float] | None = None
        """Ends of requests, if the choice of pods depends on them alone."""
        if is_apart and policy == LEAST_REQUESTS:
            self._known_ends = []
        self._pod_context = PodContext(
            profile=plan.profile,
            shares_prefixes=bool(load.group or load.session),
            begin_s=self.outcome.timeline.begin_s,
            gaps=self.outcome.gaps,
            rules=plan.rules,
            on_end=self._finish,
            known_ends=self._known_ends,
            watch=watch,
            tiers=plan.tiers,
            tier_rules=plan.tier_rules,
            adapters=plan.adapters,
            by_priority=bool(plan.priorities),
            largest_image=largest_image,
        )
        self._adapters: list[str | None] = []
        """Adapter of each request; empty without adapters."""
        if part is not None:
            self._adapters = part.adapters
        elif plan.adapters is not None:
            rng = Random(f"{plan.seed}/adapters")
            self._adapters = [plan.adapters.draw(rng) for _ in load.arrival_s]
        self._pod_maker = PodMaker(self._pod_context, plan.step_costs, plan.seed)
        priorities = {part.name: part.priority for part in plan.priorities}
        self._requests = RequestMaker(load, self._adapters, priorities)
        self.pods: list[Pod] = []
        self._request_counts: dict[int, int] = {}
        """Requests in flight, by pod."""
        self._unscraped: defaultdict[int, list[OfflineRequest]] = defaultdict(list)
        """Requests by pod whose first token is still to be scraped."""
        self._autoscaler: Autoscaler | None = None
        self._routable_pods: Sequence[int] = range(plan.pods)
        """Numbers of the pods that receive requests."""
        self._start_pods()
        self._policy = make_policy(policy, self._cached_blocks, Random(f"{plan.seed}/{policy}"))
        self._awaited = Counter(chain.from_iterable(self._followers.values()))
        """Answers that each later turn waits for, as far as they are not known."""
        self._ready_s: dict[int, float] = {}
        """Latest known end of the answers that a later turn waits for."""
        self._is_blind = is_apart and not isinstance(self._policy, PrefixAware)
        """True when the choice of pods, and so each pod, depends on the load alone."""
        self._due: list[tuple[float, int]] = []
        """Heap of times and pods with work; an entry that differs from the pod's `due_s` is
        outdated.
        """
        self._check = Standstill()
        """The latest look at whether requests end."""
        self._next_check_s = -math.inf
        self._free_places: list[float] | None = None
        """Heap of the known times at which the client's places are free; None without a limit."""
        if plan.in_flight is not None:
            self._free_places = [-math.inf] * plan.in_flight
        self._due_turns: list[tuple[float, int]] = []
        """Heap of turns that follow known answers: times and requests."""
        self._finished = 0

    def _make_transfers(self, split: Disaggregation) -> Transfers:
        # Only the prefix-aware policy uses more than requests in flight: the cached prompts.
        # Decode pods have no cached prompts.
        name = self._plan.policy
        if name == PREFIX_AWARE:
            name = LEAST_REQUESTS
        policy = make_policy(name, self._cached_blocks, Random(f"{self._plan.seed}/decode"))
        return Transfers(
            split,
            policy.choose,
            requests=len(self._load),
            endings=self._endings,
            on_change=self._update_due,
        )

    def _start_pods(self) -> None:
        plan = self._plan
        if plan.autoscaling is not None:
            self._autoscaler = Autoscaler(
                plan.autoscaling,
                pods=plan.pods,
                begin_s=self.outcome.timeline.begin_s,
                seed=plan.seed,
                start_pod=self._add_pod,
                sample=self._sample,
            )
            self._routable_pods = self._autoscaler.ready
            return
        for _ in range(plan.pods):
            self._add_pod()
        if plan.disaggregation is not None:
            self._routable_pods = range(plan.disaggregation.prefill_pods)

    def run(self) -> SimulationOutcome:
        """Simulates the load until its last token.

        Raises:
            ConfigError: Requests never end.
        """
        if self._is_blind and not isinstance(self._policy, PrefixAware):
            # One pod after another, as the state of one pod fits into the processor's caches.
            for requests in route(self._policy, self._routable_pods, self.outcome.pod):
                self._play(requests)
        elif self._known_ends is not None:
            self._play_groups([PodGroup(self.pods, self._known_ends, self._requests)])
        elif self._followers:
            self._play_sessions()
        else:
            self._play(range(len(self._load)))
        return self._end([pod.figures() for pod in self.pods])

    @property
    def is_divisible(self) -> bool:
        """True if `run_in_parts` can run the simulation."""
        return self._is_blind and self._plan.pods > 1

    def max_groups(self) -> int:
        """Returns the most processes that `run_in_groups` can use well; 0 if it cannot be used."""
        if self._known_ends is None:
            return 0
        return min(self._plan.pods, max_groups(self._load))

    def run_in_parts(
        self, pool: ProcessPoolExecutor | None, max_parts: int = 1
    ) -> SimulationOutcome:
        """Simulates parts of the fleet in a pool of processes; the outcome is that of `run`.

        At most `max_parts` parts are in memory at a time.

        Raises:
            ConfigError: Requests never end.
        """
        assert not isinstance(self._policy, PrefixAware)
        self.pods.clear()  # the processes make their own
        outcome = self.outcome
        requests_of = route(self._policy, self._routable_pods, outcome.pod)
        numbers = chain.from_iterable(requests_of)
        fleet_parts = parts(
            self._load,
            requests_of,
            adapters=self._adapters,
            begin_s=self._pod_context.begin_s,
            largest_image=self._pod_context.largest_image,
        )
        outcome.send_s = self._load.arrival_s[:]
        figures: list[PodFigures] = []
        work = partial(play_part, self._plan)
        for result in map_large_jobs(pool, work, fleet_parts, max_parts):
            # `numbers` is last: `zip` takes none beyond this part, and the next part goes on there.
            for first_s, last_s, number in zip(
                result.first_s, result.last_s, numbers, strict=False
            ):
                outcome.first_s[number] = first_s
                outcome.last_s[number] = last_s
            outcome.gaps.merge(result.gaps)
            figures += result.figures
            self._finished += result.finished
            self._progress(self._finished)
        return self._end(figures)

    def run_in_groups(self, processes: int) -> SimulationOutcome:
        """Simulates groups of pods in processes; the outcome is that of `run`.

        Raises:
            ConfigError: Requests never end.
        """
        plan = self._plan
        load = self._load
        outcome = self.outcome
        size = -(-plan.pods // processes)
        fleet = GroupPlan(
            context=replace(self._pod_context, on_end=ignore_end, known_ends=None),
            step_costs=plan.step_costs,
            seed=plan.seed,
            pods=range(plan.pods),
            load=load.rows_of(()),
            priorities=self._requests.priorities,
        )
        outcome.send_s = load.arrival_s[:]
        plans = fleet.split(size)
        with group_processes(plans, self._requests, self._finish_group) as groups:
            self._play_groups(groups, size)
            results = [group.close() for group in groups]
        for result in results:
            outcome.gaps.merge(result.gaps)
        return self._end([figures for result in results for figures in result.figures])

    def _play_groups(self, groups: Sequence[Group], group_pods: int | None = None) -> None:
        plan = self._plan
        fleet = FewestRequestsFleet(
            self._load,
            groups,
            policy=FewestRequests(self._routable_pods, Random(f"{plan.seed}/{plan.policy}")),
            pod_of=self.outcome.pod,
            group_pods=group_pods or plan.pods,
            least=LeastTimes(plan.profile.front.front, min(pod.token_s for pod in self.pods)),
        )
        next_progress = 0
        for now_s in fleet.play():
            if now_s > self._next_check_s:
                self._check_standstill(now_s, fleet.preemptions)
            if self._finished >= next_progress:
                self._progress(self._finished)
                next_progress = self._finished + REQUESTS_PER_PROGRESS

    def _finish_group(self, finished: Finished) -> None:
        outcome = self.outcome
        for number, first_s, last_s in zip(*finished, strict=True):
            outcome.first_s[number] = first_s
            outcome.last_s[number] = last_s
        self._finished += len(finished.numbers)

    def run_part(self, part: FleetPart) -> PartResult:
        """Simulates the part of a fleet."""
        outcome = self.outcome
        outcome.pod = array("i", part.pods)
        start = 0
        for size in part.sizes:
            self._play(range(start, start + size))
            start += size
        return PartResult(
            first_s=outcome.first_s,
            last_s=outcome.last_s,
            finished=self._finished,
            figures=[pod.figures() for pod in self.pods],
            gaps=outcome.gaps,
        )

    def _end(self, figures: Sequence[PodFigures]) -> SimulationOutcome:
        """Returns the outcome; `figures` has the sums of each pod."""
        outcome = self.outcome
        if self._finished < len(self._load):
            # Their times are 0, which would be the shortest latencies of the run.
            raise ConfigError(
                f"{len(self._load) - self._finished} of {len(self._load)} requests never end:"
                " no step starts them"
            )
        outcome.timeline = total_use(pod.timeline for pod in figures)
        outcome.steps = sum(pod.steps for pod in figures)
        outcome.preemptions = sum(pod.preemptions for pod in figures)
        prefill_pods = figures
        if self._transfers is not None:
            prefill_pods = figures[: len(self._routable_pods)]
        outcome.cached_tokens = sum(pod.cached_tokens for pod in prefill_pods)
        if self._plan.tiers:
            uses = chain.from_iterable(pod.tier_uses for pod in figures)
            outcome.tier_uses = total_uses(self._plan.tiers, uses)
        if self._autoscaler is not None:
            by_end = sorted(zip(outcome.pod, outcome.last_s, strict=True), key=itemgetter(1))
            outcome.lives = self._autoscaler.finish(max(outcome.last_s), dict(by_end))
        return outcome

    def _add_pod(self) -> None:
        number = len(self.pods)
        make_pod = None if self._transfers is None else self._transfers.make_pod
        first_pod = 0 if self._part is None else self._part.first_pod
        self.pods.append(self._pod_maker.make(first_pod + number, make_pod))
        self._request_counts[number] = 0

    def _sample(self, number: int, now_s: float) -> Sample:
        """Returns the metrics of a pod that has run up to `now_s`."""
        window_start_s = now_s - TTFT_WINDOW_S
        requests = [
            request
            for request in self._unscraped[number]
            if not 0 <= request.first_s <= window_start_s
        ]
        self._unscraped[number] = requests
        ttft_s = [
            request.first_s - request.send_s
            for request in requests
            if 0 <= request.first_s <= now_s
        ]
        quantiles = {
            name: histogram_quantile(share, ttft_s, FIRST_TOKEN)
            for name, share in TTFT_SHARES.items()
        }
        return self.pods[number].gauges() | quantiles

    def _play(self, numbers: Iterable[int]) -> None:
        arrival_s = self._load.arrival_s
        for index, number in enumerate(numbers):
            self._arrive(number, arrival_s[number])
            if not index % REQUESTS_PER_PROGRESS:
                self._progress(self._finished)
        while self._due:
            due_s = self._due[0][0]
            self._run_until(max(due_s + PROGRESS_EVERY_S, math.nextafter(due_s, math.inf)))
            self._progress(self._finished)

    def _preemptions(self) -> int:
        return sum(pod.scheduler.preemptions for pod in self.pods)

    def _check_standstill(self, now_s: float, preemptions: int) -> None:
        """Raises ConfigError if requests preempt each other forever.

        vLLM does so up to 0.29, with a connector and a cache that is too small for two requests.
        """
        check = self._check
        if self._finished > check.finished:
            check = Standstill(self._finished, preemptions)
        elif preemptions > check.preemptions + MAX_STANDSTILL_PREEMPTIONS:
            left = len(self._load) - self._finished
            raise ConfigError(
                f"{left} of {len(self._load)} requests never end: they preempt each other;"
                " --num-gpu-blocks-override or another version of vLLM changes that"
            )
        self._check = check
        self._next_check_s = now_s + MAX_STANDSTILL_S

    def _play_sessions(self) -> None:
        """Goes from event to event, as any event may end an answer that a turn follows."""
        arrival_s = self._load.arrival_s
        due = self._due
        turns = self._due_turns
        later_turns = set(self._awaited)
        first_turns = deque(number for number in range(len(arrival_s)) if number not in later_turns)
        for event in count():
            arrives_s = arrival_s[first_turns[0]] if first_turns else math.inf
            turn_s = turns[0][0] if turns else math.inf
            if due and due[0][0] < min(arrives_s, turn_s):
                self._run_until(math.nextafter(due[0][0], math.inf))
            elif turn_s < arrives_s:
                self._arrive(heappop(turns)[1], turn_s)
            elif first_turns:
                self._arrive(first_turns.popleft(), arrives_s)
            else:
                break
            if not event % REQUESTS_PER_PROGRESS:
                self._progress(self._finished)

    def _arrive(self, number: int, arrival_s: float) -> None:
        """Sends a request that is to be sent at `arrival_s`, after all earlier events."""
        load = self._load
        request = self._requests.make(number, arrival_s)
        request.send_s = self._wait_for_place(arrival_s)
        if self._autoscaler is not None and request.send_s > load.arrival_s[0] + MAX_LOAD_S:
            raise ConfigError(
                f"{load.row(number)}: with --autoscale, a request must not arrive after "
                f"{MAX_LOAD_S:,} s"
            )
        self._run_until(request.send_s)
        self._send(request)

    def _cached_blocks(self, request: OfflineRequest) -> dict[int, float]:
        """Returns the cached blocks of a request's prompt by pod, like an indexer without delay."""
        keys = shared_keys(request, self._plan.profile.engine.block_size, request.prompt_tokens)
        if not keys:
            return {}
        return {number: self.pods[number].cached_blocks(keys) for number in self._routable_pods}

    def _wait_for_place(self, arrival_s: float) -> float:
        """Returns the time of sending: `arrival_s`, or later if the client has no free place."""
        free_places = self._free_places
        if free_places is None:
            return arrival_s
        due = self._due
        while not free_places or (
            free_places[0] > arrival_s and due and due[0][0] < free_places[0]
        ):
            if self._autoscaler is not None and self._autoscaler.next_s <= due[0][0]:
                self._autoscaler.handle_event()
                continue
            # This step may end a request before the ends that are known.
            due_s, number = heappop(due)
            if due_s > self._next_check_s:
                self._check_standstill(due_s, self._preemptions())
            self._advance(number, due_s, due_s)
        return max(arrival_s, heappop(free_places))

    def _run_until(self, until_s: float) -> None:
        """Handles all events before `until_s`."""
        if until_s > self._next_check_s:
            self._check_standstill(until_s, self._preemptions())
        autoscaler = self._autoscaler
        while autoscaler is not None and autoscaler.next_s < until_s:
            self._run_pods_until(autoscaler.next_s)
            autoscaler.handle_event()
        self._run_pods_until(until_s)

    def _run_pods_until(self, until_s: float) -> None:
        due = self._due
        just_before_s = math.nextafter(until_s, -math.inf)
        while due and due[0][0] < until_s:
            due_s, number = heappop(due)
            # With transfers any event of a pod may lead to one of another pod.
            self._advance(number, due_s, just_before_s if self._transfers is None else due_s)

    def _advance(self, number: int, due_s: float, until_s: float) -> None:
        part: Pod | Transfers = self.pods[number]
        if self._transfers is not None and number == TRANSFERS_NUMBER:
            part = self._transfers
        if part.due_s == due_s:
            part.due_s = part.advance(until_s)
            if part.due_s < math.inf:
                heappush(self._due, (part.due_s, number))

    def _update_due(self, number: int, part: Pod | Transfers) -> None:
        """Enters the next event of a pod, or of the transfers, into the heap."""
        if part.next_s != part.due_s:
            part.due_s = part.next_s
            heappush(self._due, (part.due_s, number))

    def _send(self, request: OfflineRequest) -> None:
        pod_of = self.outcome.pod
        counts = self._request_counts
        if not self._is_blind:
            endings = self._endings
            while endings and endings[0][0] <= request.send_s:
                counts[heappop(endings)[1]] -= 1
            chosen = self._policy.choose(request, self._routable_pods, counts)
            pod_of[request.number] = chosen
            counts[chosen] += 1
            if self._autoscaler is not None:
                self._unscraped[chosen].append(request)
        number = pod_of[request.number]
        if self._transfers is not None:
            request, pod_of[request.number] = self._transfers.split(request, number, counts)
        pod = self.pods[number]
        pod.send(request, request.send_s)
        self._update_due(number, pod)

    def _finish(self, request: OfflineRequest) -> None:
        outcome = self.outcome
        number = request.number
        last_s = request.last_s
        outcome.send_s[number] = request.send_s
        outcome.first_s[number] = request.first_s
        outcome.last_s[number] = last_s
        if not self._is_blind and self._known_ends is None:
            heappush(self._endings, (last_s, outcome.pod[number]))
        if self._free_places is not None:
            heappush(self._free_places, last_s + self._plan.turnaround_s)
        for turn in self._followers.get(number, ()):
            ready_s = max(last_s, self._ready_s.get(turn, last_s))
            self._ready_s[turn] = ready_s
            self._awaited[turn] -= 1
            if not self._awaited[turn]:
                heappush(self._due_turns, (ready_s + self._load.think_s[turn], turn))
        self._finished += 1


def simulate(
    load: LoadTrace,
    plan: SimulationPlan,
    progress: Progress = ignore_progress,
    watch: Watch | None = None,
    processes: int = 1,
) -> SimulationOutcome:
    """Simulates `load`. `progress` receives the number of finished requests, `watch` each step.

    Uses up to `processes` processes if the load is long and the choice of pods depends on no more
    than the ends of requests.
    """
    with without_collector():
        simulation = Simulation(load, plan, progress, watch)
        is_long = len(load) >= MIN_DIVIDED_REQUESTS
        if processes > 1 and is_long and simulation.is_divisible:
            with worker_pool(processes) as pool:
                return simulation.run_in_parts(pool, 2 * processes)
        groups = min(processes, simulation.max_groups())
        if groups > 1 and is_long:
            return simulation.run_in_groups(groups)
        return simulation.run()


def play_part(plan: SimulationPlan, part: FleetPart) -> PartResult:
    """Simulates a part of the fleet of `plan`, in this process or in a worker."""
    plan = replace(plan, pods=len(part.sizes))
    with without_collector():
        return Simulation(part.load, plan, ignore_progress, part=part).run_part(part)
