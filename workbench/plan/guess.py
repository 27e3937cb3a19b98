"""Estimate of the pods that a load needs, with which the search for a fleet begins.

A pod that decodes is taken to be in balance: each step has the decodes and the prompt tokens that
arrive while the step runs. The estimate saves simulations, and does not change their results.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from statistics import fmean

import msgspec

from workbench.engine.steps import Batch, StepCost
from workbench.load.loads import LoadTrace
from workbench.plan.slo import Slo
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.simulation import SimulationPlan

SPREAD = 0.9
"""Mean time of a token as a share of the percentile that a limit is for."""
MAX_STEP_S = 1.0
"""Longest step, where the SLO does not limit the time of a token."""
MAX_ROUNDS = 200
"""Most rounds of the iteration for the length of a step."""
SAME_STEP = 1.001
"""Ratio of two steps at which the iteration ends."""


def guess_pods(load: LoadTrace, plan: SimulationPlan, slo: Slo, max_pods: int) -> int:
    """Returns about the fewest pods that meet the SLO; 1 where the rate depends on the replies."""
    length_s = load.arrival_s[-1] - load.arrival_s[0]
    if plan.in_flight is not None or load.session or length_s <= 0:
        return 1
    balance = _Balance(load, plan, min(MAX_STEP_S, SPREAD * slo.max_token_s(load)))
    rate = len(load) / length_s
    counts = range(1, max_pods + 1)
    return 1 + bisect_left(counts, True, key=lambda pods: balance.holds(rate / pods))


class _Balance:
    """Length of the steps of a pod by the rate of its requests."""

    def __init__(self, load: LoadTrace, plan: SimulationPlan, max_step_s: float) -> None:
        self._limits = plan.profile.engine
        self._cost = StepCost(msgspec.structs.replace(plan.profile.cost, slowdown=0.0))
        self._max_step_s = max_step_s
        shared_tokens = fmean(load.prefix_tokens) if load.group else 0.0
        self._input_tokens = fmean(load.input_tokens)
        self._prompt_tokens = max(1.0, self._input_tokens - shared_tokens)
        self._output_tokens = fmean(load.output_tokens)

    def holds(self, rate: float) -> bool:
        """Returns whether a pod keeps up with `rate` requests per second."""
        step_s = 0.0
        for _ in range(MAX_ROUNDS):
            last_s = step_s
            decodes = rate * self._output_tokens * last_s
            prompt_tokens = rate * self._prompt_tokens * last_s
            step_s = self._step_s(decodes, prompt_tokens)
            if step_s > self._max_step_s or not self._fits(decodes, prompt_tokens):
                return False
            if step_s <= SAME_STEP * last_s:
                return True
        return False

    def _fits(self, decodes: float, prompt_tokens: float) -> bool:
        limits = self._limits
        held_tokens = decodes * (self._input_tokens + self._output_tokens)
        return (
            decodes <= limits.max_num_seqs
            and decodes + prompt_tokens <= limits.max_num_batched_tokens
            and held_tokens <= limits.num_gpu_blocks * limits.block_size
        )

    def _step_s(self, decodes: float, prompt_tokens: float) -> float:
        """Returns the mean seconds of a step; a prompt is computed in one of several steps."""
        sequences = max(1, round(decodes))
        context = round(sequences * (self._input_tokens + self._output_tokens / 2))
        decode_only = Batch[OfflineRequest](tokens=sequences, sequences=sequences, context=context)
        prompts = prompt_tokens / self._prompt_tokens
        tokens = math.ceil(max(1.0, prompts) * self._prompt_tokens)
        mixed = Batch[OfflineRequest](
            tokens=sequences + tokens,
            sequences=sequences + math.ceil(prompts),
            context=context,
            attention=tokens * self._input_tokens / 2,
            prefills=max(1, round(prompts)),
        )
        decode_s = self._cost.seconds(decode_only, 0.0, idle=False)
        mixed_s = self._cost.seconds(mixed, 0.0, idle=False)
        return decode_s + min(1.0, prompts) * (mixed_s - decode_s)
