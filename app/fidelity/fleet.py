"""A simulated fleet: all pods together, or pod by pod over processes where no pod looks at another."""

from __future__ import annotations

from array import array
from dataclasses import replace

from msgspec import Struct

from app.fidelity.pod import Watch
from app.fidelity.prefix_blocks import GroupedRequest
from app.fidelity.processes import each
from app.fidelity.routing import policy_of
from app.fidelity.simulation import Outcome, Plan, Simulation, Told
from app.load.trace import Load


class _PodJob(Struct, frozen=True):
    load: Load
    plan: Plan
    pod: int
    begin_s: float


def simulate(load: Load, plan: Plan, processes: int, told: Told, watch: Watch | None = None) -> Outcome:
    """What becomes of `load`. `told` is called with the requests that are done, `watch` with each step."""
    if watch is not None or not plan.apart:
        return Simulation(load, plan, told, watch=watch).run()
    numbers = _by_pod(load, plan)
    begin_s, done = load.arrival_s[0], [0]
    jobs = []
    for pod, its in enumerate(numbers):
        jobs.append(_PodJob(load.part(its), plan, pod, begin_s))
        told(0)
    outcome = Outcome(load)
    for pod, part in each(_simulate_pod, jobs, processes, lambda: told(sum(done))):
        outcome.put(numbers[pod], pod, part)
        done.append(len(numbers[pod]))
        told(sum(done))
    return outcome


def _by_pod(load: Load, plan: Plan) -> list[array[int]]:
    """The numbers of the requests that each pod gets."""
    policy = policy_of(plan.policy, plan.seed, lambda request: ())
    numbers: list[array[int]] = [array("i") for _ in range(plan.pods)]
    nobody, request = [0] * plan.pods, GroupedRequest(0, 0.0, 1, 1)
    for request.number in range(len(load)):
        numbers[policy.choose(request, nobody)].append(request.number)
    return numbers


def _simulate_pod(job: _PodJob) -> Outcome:
    alone = replace(job.plan, pods=1)
    simulation = Simulation(job.load, alone, lambda done: None, job.pod)
    simulation.outcome.timeline.begin_s = job.begin_s
    return simulation.run()
