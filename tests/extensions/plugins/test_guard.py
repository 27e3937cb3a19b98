"""What is logged of results that make no sense."""

import math
from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.extensions.plugins.guard import Guard


class Cost:
    """A plugin's cost of steps, which is the same for each step."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> Any:
        return self._answer


def usual_seconds(batch: Batch[Any], start_s: float, idle: bool) -> float:
    return 0.5


@pytest.mark.parametrize(
    ("answer", "shown"), [(math.inf, "inf"), (10**400, "inf"), (math.nan, "nan"), (-1, "-1.0")]
)
def test_step_time_out_of_range_is_reported_in_one_line(
    answer: float, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard("mine", "step_cost")
    cost = guard.step_cost(Cost(answer), usual_seconds)
    assert cost.seconds(Batch(), 0.0, idle=False) == 0.5
    assert cost.seconds(Batch(), 0.0, idle=False) == 0.5
    assert guard.errors == 2
    [record] = caplog.records
    assert record.exc_info is None
    words = f"plugin mine: hook step_cost returned {shown} seconds, which is not from 0 to 1e+09;"
    assert record.getMessage().startswith(words)


def test_step_time_that_is_not_a_number_is_reported_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cost = Guard("mine", "step_cost").step_cost(Cost(None), usual_seconds)
    assert cost.seconds(Batch(), 0.0, idle=False) == 0.5
    [record] = caplog.records
    assert record.exc_info is not None
    assert "plugin mine: hook step_cost failed;" in record.getMessage()
