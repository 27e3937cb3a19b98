"""Places of an engine with shared steps, set at run time."""

from msgspec.structs import replace

from app.core.engine.batch import SchedulerRules
from app.core.engine.profile import SpeculationRates
from app.core.engine.step_executor import StepExecutor
from app.extensions.devmode.choking import set_places
from config.settings import StepSettings
from tests.core.engine.harness import PROFILE, Harness


def test_fewer_places_keep_the_slots_that_older_versions_reserve_for_drafts() -> None:
    rates = SpeculationRates(acceptance=(1.0,), draft_slots=3)
    harness = Harness(
        slots=2,
        profile=replace(PROFILE, speculation=rates),
        rules=SchedulerRules(counts_draft_slots=False),
        sections={"steps": StepSettings(timing="steps", max_num_batched_tokens=20)},
    )
    executor = harness.engine.executor
    assert isinstance(executor, StepExecutor)
    set_places(harness.engine, 1)
    assert executor.free() == 1
    assert executor.limits.max_num_batched_tokens == 20 - 3 * 2
