"""The choice of a scheduler, once at the start of an engine."""

from __future__ import annotations

from collections.abc import Iterable

from app.core.engine.batch import Blocks, S, SchedulerLimits
from app.core.engine.exact_scheduler import ExactScheduler
from app.core.engine.plain_scheduler import PlainScheduler
from app.core.engine.scheduler import Scheduler
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.core.engine.waiting_queue import WaitingQueue


def make_scheduler(
    limits: SchedulerLimits,
    blocks: Blocks[S],
    waiting: WaitingQueue[S],
    policies: Iterable[SchedulingPolicy[S]] = (),
) -> Scheduler[S]:
    """Returns the scheduler for the policies of the blocks, and `policies` after them.

    Decodes advance in bulk unless a policy visits each decode.
    """
    chosen = [*blocks.policies, *policies]
    kind: type[Scheduler[S]] = PlainScheduler
    if any(policy.visits_decodes for policy in chosen):
        kind = ExactScheduler
    return kind(limits, blocks, waiting, chosen)
