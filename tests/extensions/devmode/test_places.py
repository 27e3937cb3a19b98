"""Places of an engine with shared steps, set at run time."""

from app.core.engine.step_executor import StepExecutor
from app.extensions.devmode.choking import set_places
from tests.core.engine.harness import harness_with_draft_slots


def test_fewer_places_keep_the_slots_that_older_versions_reserve_for_drafts() -> None:
    harness = harness_with_draft_slots()
    executor = harness.engine.executor
    assert isinstance(executor, StepExecutor)
    set_places(harness.engine, 1)
    assert executor.free() == 1
    assert executor.limits.max_num_batched_tokens == 20 - 3 * 2
