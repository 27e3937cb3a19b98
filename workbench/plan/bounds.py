"""Bounds of a plan: engines that cannot meet the SLO, and the fewest pods that can do the work."""

import math

import msgspec

from workbench.engine.steps import Batch, Profile, StepCost
from workbench.load.loads import LoadTrace
from workbench.plan.fleets import Group
from workbench.plan.slo import Slo
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.simulation import SimulationOutcome, SimulationPlan
from workbench.runs.summary import summarize

TOKEN_POWERS = 15
"""Steps of up to `2 ** (TOKEN_POWERS - 1)` tokens are tried for the least cost of a token."""


def apply_bounds(group: Group, load: LoadTrace, slo: Slo, max_pods: int) -> None:
    """Drops engines that miss the SLO on an idle pod, and excludes fleets that are too small."""
    plan = group.engines[0].job.plan
    budget = max(engine.limits.max_num_batched_tokens for engine in group.engines)
    outcome, work_s = _min_times(load, plan, budget)
    idle = slo.judge(outcome, summarize(outcome, group.name))
    if idle.misses:
        group.reason = f"misses {idle.misses} even on an idle pod"
        group.engines = []
        group.idle_share = idle.slo_share
        return
    if plan.in_flight is not None or load.session:
        return
    work_s.sort()
    min_pods = 1
    for requests, max_request_s in slo.guarantees(load):
        available_s = load.arrival_s[-1] - load.arrival_s[0] + max_request_s
        min_pods = max(min_pods, math.ceil(sum(work_s[:requests]) / available_s))
    if min_pods > max_pods:
        group.reason = f"needs {min_pods} pods at least"
        group.engines = []
    for engine in group.engines:
        engine.failed = max(engine.failed, min_pods - 1)


def _min_times(
    load: LoadTrace, plan: SimulationPlan, budget: int
) -> tuple[SimulationOutcome, list[float]]:
    """Returns the outcome on idle pods, and the least seconds of a pod for each request."""
    front = plan.profile.front
    costs = _MinCosts(plan.profile, budget)
    outcome = SimulationOutcome(load, plan)
    work_s = []
    sizes = zip(load.input_tokens, load.output_tokens, strict=True)
    for number, (input_tokens, output_tokens) in enumerate(sizes):
        shared_tokens = load.prefix_tokens[number] if load.group else 0
        # The other tokens may be cached.
        computed_tokens = 1 if load.session else max(1, input_tokens - shared_tokens)
        decodes = output_tokens - 1
        steps = math.ceil(decodes / costs.max_step_tokens)
        prefill_s = costs.prefill_s(computed_tokens)
        first_s = (
            front.front + front.front_per_token * input_tokens + prefill_s + front.out_per_stream
        )
        outcome.first_s[number] = first_s
        outcome.last_s[number] = first_s + steps * costs.step_s(1, input_tokens)
        work_s.append(
            (computed_tokens + decodes) * costs.token_s + steps * costs.decode_s(input_tokens)
        )
    return outcome, work_s


def _max_step_tokens(profile: Profile) -> int:
    """Returns the maximum number of tokens that a decode gets in a step."""
    count = 1
    if profile.speculation is not None:
        for rate in profile.speculation.acceptance:
            if rate == 0:
                break
            count += 1
    return count


class _MinCosts:
    """Least costs of steps, on a pod that never gets hot."""

    def __init__(self, profile: Profile, budget: int) -> None:
        self._costs = msgspec.structs.replace(profile.cost, slowdown=0.0)
        self._model = StepCost(self._costs)
        self._budget = budget
        self.max_step_tokens = _max_step_tokens(profile)
        self._full_step_s = self.step_s(budget, prefills=1)
        self._prefills_s: dict[int, float] = {}
        """Seconds by number of tokens."""
        self.token_s = min(
            self.step_s(tokens) / tokens
            for tokens in (min(budget, 1 << power) for power in range(TOKEN_POWERS))
        )

    def step_s(self, tokens: int, context: int = 0, prefills: int = 0) -> float:
        """Returns the seconds of a step with one sequence."""
        batch = Batch[OfflineRequest](
            tokens=tokens, sequences=1, context=context, prefills=prefills
        )
        return self._model.seconds(batch, 0.0, False)

    def prefill_s(self, tokens: int) -> float:
        """Returns the seconds of a prompt that runs alone."""
        if tokens not in self._prefills_s:
            full_steps, remaining_tokens = divmod(tokens, self._budget)
            seconds = full_steps * self._full_step_s
            if remaining_tokens:
                seconds += self.step_s(remaining_tokens, prefills=1)
            self._prefills_s[tokens] = seconds
        return self._prefills_s[tokens]

    def decode_s(self, context: int) -> float:
        """Returns the seconds that a decode adds to a step, without its token."""
        costs = self._costs
        per_context = costs.per_context * (1 - costs.window_share)
        return costs.per_decode + costs.per_sequence + per_context * context
