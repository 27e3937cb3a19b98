"""`understudy fleet --drill FILE`: plays failures behind a router, and scores it."""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from random import Random

import gevent
import msgspec

from app.core.application import tokenizer_of
from app.core.engine.simulated.corpus import Corpus, sample_sentences
from app.core.settings import load, settings_type
from app.core.text.base import Tokenizer
from app.extensions.plugins.plugged import routing_policies
from app.shared.http_client import Target
from config import Settings, UsageError
from config.command_line import parse
from workbench.drills.drill_file import Drill, read_drill
from workbench.drills.drill_pod import DrillPod
from workbench.drills.gate import Attempt, Gate
from workbench.drills.load import DrillClient, Outcome, request_id
from workbench.drills.report import DrillReport, print_report, read_figures
from workbench.drills.reusable import reusable_tokens
from workbench.drills.router import (
    RouterChoice,
    RunningRouter,
    check_command,
    check_counter,
    running_router,
    wait_for_router,
)
from workbench.drills.schedule import PlayedStep, Player, phases_of, steps_of
from workbench.drills.score import differences, measure, score
from workbench.fleet.fleet import (
    LATENCY_FLAGS,
    MODULE,
    SETTLE_TIMEOUT_S,
    Fleet,
    FleetPlan,
    check_flags,
    pod_flags,
    start_indexer,
)
from workbench.fleet.indexer import Indexer
from workbench.fleet.processes import HOST, FleetError, Processes
from workbench.fleet.workload import Workload, make_workload
from workbench.load.policies import PREFIX_AWARE, policies_of
from workbench.load.progress import progress_bar
from workbench.runs.recording_client import completion

DRILL_FLAGS = LATENCY_FLAGS | {"time-factor-under-load": "1", "max-num-seqs": "32"}
"""Latency flags of a pod: requests do not delay one another, so that counts repeat."""
DRILL_SETTINGS = ("fault-rules",)
"""Settings that only the drill sets, besides those of a fleet."""
PROBE_TIMEOUT_S = 6.0
"""Longest wait for a probe of the router before the load starts."""
SAMPLES_BEFORE = 8
"""The router's counter is read this part of the interval between requests before a phase."""
LABEL_ROUNDS = 4
"""Requests per pod that find out the order of the pods in the router."""

Run = tuple[list[Outcome], list[PlayedStep], list[int]]
"""Outcomes, steps as they were played, and the router's retries at the edges of the phases."""


class DrillClock:
    """Seconds since `start`."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()

    def start(self, delay_s: float) -> None:
        """Makes the time `delay_s` from now the start."""
        self._start_s = time.perf_counter() + delay_s

    def now(self) -> float:
        """Returns the seconds since the start."""
        return time.perf_counter() - self._start_s

    def sleep_until(self, time_s: float) -> None:
        """Waits until a number of seconds since the start."""
        remaining_s = time_s - self.now()
        while remaining_s > 0:
            gevent.sleep(remaining_s)
            remaining_s = time_s - self.now()


class DrillFleet:
    """The running pods of a drill, with their gates."""

    def __init__(
        self, drill: Drill, settings: Settings, processes: Processes, clock: DrillClock
    ) -> None:
        self.drill = drill
        self.settings = settings
        self.processes = processes
        self.clock = clock
        self.model = settings.model.served_names[0]
        self.pods: list[DrillPod] = []
        self.attempts: list[Attempt] = []

    @property
    def addresses(self) -> list[str]:
        """Addresses of the gates."""
        return [pod.gate.address for pod in self.pods]

    def start(
        self,
        common_flags: Sequence[str],
        *,
        ports: Sequence[int],
        events: str | None,
        progress: Callable[[int], None],
    ) -> None:
        """Starts all pods and waits until they are healthy.

        `ports` are the ports of the gates; empty for any free ones. `events` is the address of the
        indexer, if there is one.

        Raises:
            FleetError: A pod does not start.
        """
        for number in range(self.drill.pods):
            pod_port = self.processes.port()
            gate_port = ports[number] if ports else self.processes.port()
            gate = Gate(number, gate_port, pod_port, now=self.clock.now, note=self.attempts.append)
            words = [*MODULE, "--seed", str(self.drill.seed + number), *common_flags]
            words += ["--host", HOST, "--port", str(pod_port), "--pod-ip", HOST]
            if events is not None:
                topic = f"kv@{gate.address}@{self.settings.model.model}"
                words += ["--zmq-endpoint", events, "--kv-events-topic", topic]
            pod = DrillPod(
                number, gate=gate, port=pod_port, command=words, processes=self.processes
            )
            self.pods.append(pod)
            pod.start()
        for number, pod in enumerate(self.pods, 1):
            pod.admit()
            progress(number)

    def number_by_use(self, target: Target) -> None:
        """Numbers the pods in the order of their first use by the router.

        A router may list its pods in a different order in each run. Pods that it does not use
        follow in the order of their ports.
        """
        order: list[int] = []
        for number in range(LABEL_ROUNDS * len(self.pods)):
            self.attempts.clear()
            prompt = f"Hello, pod {number}!"
            body = completion(self.model, prompt, 1, user=request_id(number))
            wait_for_router(target, body, self.processes.check)
            for attempt in self.attempts:
                if attempt.pod not in order:
                    order.append(attempt.pod)
            if len(order) == len(self.pods):
                break
        order += [pod.number for pod in self.pods if pod.number not in order]
        self.pods = [self.pods[number] for number in order]
        for number, pod in enumerate(self.pods):
            pod.number = number
            pod.gate.number = number
        self.attempts.clear()

    def empty_caches(self, indexer: Indexer | None) -> None:
        """Empties the prefix caches, and waits until the index follows.

        Raises:
            FleetError: A cache is not empty in time.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        for pod in self.pods:
            error = f"pod {pod.number} does not empty its cache"
            while not pod.empty_cache():
                self.processes.pause(deadline_s, error)
        if indexer is not None:
            Fleet(self.addresses, indexer, self.processes, self.settings).wait_for_index()

    def await_probe(self) -> None:
        """Waits until the router has just probed a pod, if it probes often.

        Probes and requests then interleave in the same way in each run.
        """
        gate = self.pods[0].gate
        gate.probed.clear()
        gate.probed.wait(PROBE_TIMEOUT_S)

    def close(self) -> None:
        """Closes the gates."""
        for pod in self.pods:
            pod.gate.close()


def run_drill(options: Namespace, flags: Sequence[str]) -> int:
    """Plays a drill, and reports the score; returns the exit status."""
    check_drill_flags(flags)
    drill = read_drill(options.drill)
    if options.seed_given is not None:
        drill = msgspec.structs.replace(drill, seed=options.seed_given)
    if options.pod_ports and len(options.pod_ports) != drill.pods:
        raise UsageError(
            f"argument --pod-ports: got {len(options.pod_ports)} ports for {drill.pods} pods"
        )
    expected = None
    if options.same_as is not None:
        expected = read_figures(options.same_as)
    settings = load(flags, {}, warn=_warn)
    choice = _router_choice(options, settings)
    tokenizer = tokenizer_of(settings)
    workload = _workload(drill, tokenizer)
    prompts = [tokenizer.encode(prompt) for prompt in workload.prompts]
    plan = FleetPlan(
        flags=flags, settings=settings, workload=workload, pods=drill.pods, seed=drill.seed
    )
    outcomes, played, retry_counts = _play(drill, plan, choice, options.pod_ports)
    reusable = reusable_tokens(prompts, settings.kvcache.block_size)
    for outcome, tokens in zip(outcomes, reusable, strict=True):
        outcome.reusable_tokens = tokens
    figures = score(drill, phases_of(drill), outcomes, retry_counts)
    report = DrillReport(
        drill=drill,
        router=choice.name,
        figures=figures,
        digest=figures.digest,
        times=measure(drill, outcomes, played),
        requests=outcomes,
    )
    print_report(report, options)
    if expected is None:
        return 0
    changed = differences(report.figures, expected)
    for line in changed:
        print(f"differs from {options.same_as}: {line}")
    if not changed:
        print(f"the same figures as in {options.same_as}")
    return int(bool(changed))


def check_drill_flags(flags: Sequence[str]) -> None:
    """Raises UsageError for flags that are not settings, or that the drill sets."""
    check_flags(flags)
    for name in parse(flags, {}, settings_type()).values:
        if name in DRILL_SETTINGS:
            raise UsageError(f"flag --{name} cannot be used, because the drill sets it")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _workload(drill: Drill, tokenizer: Tokenizer) -> Workload:
    corpus = Corpus(tokenizer, sample_sentences())

    def compose(tokens: int, rng: Random) -> str:
        _, words = corpus.compose(tokens, rng)
        return "".join(words)

    return make_workload(
        drill.requests, drill.groups, drill.prefix_tokens, seed=drill.seed, compose=compose
    )


def _router_choice(options: Namespace, settings: Settings) -> RouterChoice:
    """Returns the router that the flags name.

    Raises:
        UsageError: The command or the policy is wrong.
    """
    if options.router_retries is not None:
        check_counter(options.router_retries)
    if options.router is not None:
        check_command(options.router)
        return RouterChoice(command=options.router, retries=options.router_retries)
    if options.router_url is not None:
        return RouterChoice(target=options.router_url, retries=options.router_retries)
    names = options.policies or (PREFIX_AWARE,)
    [(policy, make_policy)] = policies_of(names, routing_policies(settings)).items()
    return RouterChoice(policy=policy, make_policy=make_policy)


def _play(drill: Drill, plan: FleetPlan, choice: RouterChoice, pod_ports: Sequence[int]) -> Run:
    """Starts pods and router, and plays the drill.

    Raises:
        FleetError: A process fails without a reason in the drill.
    """
    with ExitStack() as stack:
        processes = Processes()
        stack.callback(processes.close)
        fleet = DrillFleet(drill, plan.settings, processes, DrillClock())
        stack.callback(fleet.close)
        indexer = None
        events = None
        if choice.is_own:
            events = f"tcp://{HOST}:{processes.port()}"
            server = start_indexer(processes, plan.flags, events)
            processes.wait(server)
            indexer = Indexer(server.address)
        with progress_bar(sys.stderr, "starting pods", drill.pods, "pods") as progress:
            fleet.start(
                pod_flags(plan, DRILL_FLAGS, drill.reply_tokens),
                ports=pod_ports,
                events=events,
                progress=progress,
            )
        router = stack.enter_context(
            running_router(
                choice,
                pods=fleet.addresses,
                processes=processes,
                indexer=indexer,
                seed=drill.seed,
            )
        )
        if choice.is_own:
            wait_for_router(router.target, completion(fleet.model, "Hello!", 1), processes.check)
            fleet.empty_caches(indexer)
        else:
            fleet.number_by_use(router.target)
            fleet.empty_caches(indexer)
            fleet.await_probe()
        return _run_load(fleet, router, plan.workload)


def _run_load(fleet: DrillFleet, router: RunningRouter, workload: Workload) -> Run:
    """Sends the load while the failures are played.

    Raises:
        FleetError: A pod does not obey, or the router's counter cannot be read.
    """
    drill = fleet.drill
    clock = fleet.clock
    # A quarter of the interval after a probe of the router, and before the first request.
    clock.start(drill.interval_s / 4)
    player = Player(steps_of(drill), fleet.pods, now=clock.now, sleep_until=clock.sleep_until)
    client = DrillClient(
        router.target,
        model=fleet.model,
        reply_tokens=drill.reply_tokens,
        timeout_s=drill.timeout_s,
        now=clock.now,
        sleep_until=clock.sleep_until,
    )
    retry_counts: list[int] = []
    caller = gevent.getcurrent()
    helpers = [gevent.spawn(run_guarded, player.play, caller)]
    if router.count_retries is not None:
        sample = partial(
            _sample, router.count_retries, drill=drill, clock=clock, counts=retry_counts
        )
        helpers.append(gevent.spawn(run_guarded, sample, caller))
    try:
        with progress_bar(sys.stderr, "drill", drill.requests, "requests") as progress:
            outcomes = client.run(workload.prompts, drill.interval_s, progress)
        gevent.joinall(helpers)
    finally:
        gevent.killall(helpers)
    if router.count_retries is not None:
        retry_counts.append(router.count_retries())
    reached: dict[str, list[int]] = {}
    for attempt in fleet.attempts:
        reached.setdefault(attempt.request_id, []).append(attempt.pod)
    for outcome in outcomes:
        outcome.pods = tuple(reached.get(request_id(outcome.number), ()))
    return outcomes, player.played, retry_counts


def _sample(
    count_retries: Callable[[], int], *, drill: Drill, clock: DrillClock, counts: list[int]
) -> None:
    """Appends the router's counter shortly before the start of each phase."""
    for phase in phases_of(drill):
        clock.sleep_until(phase.start_s - drill.interval_s / SAMPLES_BEFORE)
        counts.append(count_retries())


def run_guarded(work: Callable[[], None], caller: gevent.Greenlet) -> None:
    """Runs `work` in a greenlet beside `caller`, which gets its FleetError."""
    try:
        work()
    except FleetError as error:
        gevent.kill(caller, error)
