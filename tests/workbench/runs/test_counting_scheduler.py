"""The scheduler of simulations whose blocks are only counted, beside a simple reference."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.batch import SchedulerLimits
from tests.core.engine.test_scheduler import ACTIONS, LIMITS, REQUESTS, Pair, play
from workbench.engine.counting_scheduler import CountingScheduler


@settings(max_examples=100, deadline=None)
@given(REQUESTS, LIMITS, ACTIONS, st.booleans())
def test_every_step_of_counted_blocks_equals_the_step_of_a_simple_reference_scheduler(
    requests: Sequence[tuple[int, int, int, bool]],
    limits: SchedulerLimits,
    actions: Sequence[tuple[str, int]],
    caching: bool,
) -> None:
    pair = Pair(requests, limits, caching, drafts=0, is_exact=False, make=CountingScheduler)
    play(pair, actions)
