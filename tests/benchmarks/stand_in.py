"""An engine that costs exactly what a profile says, on a clock of its own: what is real, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.engine.core.batch import Batch
from app.engine.core.scheduler import Scheduler
from app.engine.core.step_loop import StepCost
from app.engine.kvcache.block_pool import CountedBlocks
from app.lab.fidelity.pod import OfflineRequest, scheduler_limits
from benchmarks.rehearse.playing import Clock, Token
from config.profile import CostConstants, EngineLimits


class StandIn:
    """`noise` is what each step's seconds are multiplied by."""

    def __init__(
        self, limits: EngineLimits, cost: CostConstants, noise: Callable[[], float] = lambda: 1.0
    ) -> None:
        self.limits = limits
        self.now_s = 0.0
        self.clock = Clock(lambda: self.now_s, self._pass)
        self.pauses: list[float] = []
        self._cost = StepCost(cost)
        self._noise = noise
        self._blocks = CountedBlocks(limits.num_gpu_blocks, limits.block_size, limits.enable_prefix_caching)
        self._scheduler: Scheduler[OfflineRequest] = Scheduler(scheduler_limits(limits), self._blocks)
        self._numbers: dict[OfflineRequest, int] = {}

    def add(self, number: int, input_tokens: int, output_tokens: int) -> None:
        request = OfflineRequest(0.0, input_tokens, output_tokens)
        self._numbers[request] = number
        self._scheduler.waiting.add(request)

    def step(self) -> tuple[Batch[Any], Sequence[Token]]:
        batch = self._scheduler.schedule()
        assert batch is not None
        self.now_s += self._cost.seconds(batch, self.now_s, False) * self._noise()
        self._scheduler.complete(batch)
        told = [*batch.decodes, *batch.prefilled]
        return batch, [Token(self._numbers[it], it in batch.ends) for it in told]

    def reset(self) -> None:
        assert self._scheduler.idle

    def _pass(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += max(seconds, 1e-9)  # less might not add up to anything
