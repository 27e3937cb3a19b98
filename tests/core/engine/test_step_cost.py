"""What a step costs, part by part, reckoned by hand; and how hot the device is, reckoned by small
steps.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.batch import Batch, SequenceState
from app.core.engine.profile import CostConstants
from app.core.engine.step_cost import StepCost


def step(**holds: float) -> Batch[SequenceState]:
    batch: Batch[SequenceState] = Batch()
    for name, value in {"tokens": 1, "sequences": 1, **holds}.items():
        setattr(batch, name, value)
    return batch


def cost(batch: Batch[SequenceState], idle: bool = False, **constants: float) -> float:
    return StepCost(CostConstants(**constants)).seconds(batch, 5.0, idle)


MIXED = {"tokens": 12, "sequences": 4, "context": 300, "prefills": 2, "attention": 70.0}


@pytest.mark.parametrize(
    ("constants", "decodes_s", "mixed_s"),
    [
        ({"per_context": 0.01}, 3.0, 3.0),
        ({"per_sequence": 0.5}, 2.0, 2.0),
        ({"per_attention": 0.1}, 0.0, 7.0),
        ({"mixed_context": 0.01}, 0.0, 3.0),
        ({"per_token": 0.5}, 6.0, 6.0),
        ({"per_token": 0.5, "tile": 1.0}, 64.0, 64.0),
        ({"weights": 3.0, "per_token": 0.5, "p": 1.0}, 9.0, 9.0),
        ({"per_token": 0.5, "spill": 0.25}, 42.0, 42.0),
        ({"weights": 3.0, "per_token": 1 / 3, "p": 2.0}, 5.0, 5.0),
        ({"weights": 4.0, "expert_weights": 2.0, "expert_share": 1.0}, 6.0, 6.0),
        ({"wake": 9.0}, 0.0, 0.0),
    ],
)
def test_step_duration_follows_from_the_counts_and_cost_constants(
    constants: Any, decodes_s: float, mixed_s: float
) -> None:
    assert cost(step(**{**MIXED, "prefills": 0}), **constants) == pytest.approx(decodes_s)
    assert cost(step(**MIXED), **constants) == pytest.approx(mixed_s)


def test_encoding_an_image_is_a_part_of_the_prompt() -> None:
    batch = step(**MIXED)
    batch.encoder_s = 2.0
    assert cost(batch, base=1.0) == pytest.approx(3.0)
    assert cost(batch, base=1.0, slowdown=0.5, tau=1e-3) == pytest.approx(4.0, abs=0.01)


class Device:
    """Heat by the formula of docs/how-timing-works.md, in very small steps."""

    PARTS = 4000

    def __init__(self, tau: float, slowdown: float) -> None:
        self.tau = tau
        self.slowdown = slowdown
        self.heat = 0.0
        self.now_s = 0.0

    def cool(self, until_s: float) -> None:
        self._pass(until_s - self.now_s, 0.0)
        self.now_s = until_s

    def prefill(self, cold_s: float, computing_s: float) -> float:
        heat = self.heat
        hot = self._pass(cold_s, 1.0)
        self.heat = heat
        seconds = cold_s + self.slowdown * computing_s * hot
        self._pass(seconds, 1.0)
        self.now_s += seconds
        return seconds

    def _pass(self, seconds: float, towards: float) -> float:
        """The mean heat meanwhile."""
        mean = 0.0
        for _ in range(self.PARTS):
            mean += self.heat / self.PARTS
            self.heat += (towards - self.heat) * seconds / self.PARTS / self.tau
        return mean


@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.1), st.integers(1, 40), st.booleans()), min_size=1, max_size=4
    ),
    st.sampled_from([0.02, 0.04, 0.3]),
)
def test_prefill_soon_after_another_prefill_is_slower(
    steps: list[tuple[float, int, bool]], tau: float
) -> None:
    costs = StepCost(
        CostConstants(base=0.004, per_token=0.001, per_attention=0.0001, slowdown=0.5, tau=tau)
    )
    device = Device(tau, 0.5)
    now_s = 0.0
    for pause_s, tokens, prefills in steps:
        now_s += pause_s
        batch = step(tokens=tokens, prefills=int(prefills), attention=10.0 * tokens * prefills)
        seconds = costs.seconds(batch, now_s, idle=False)
        expected = 0.004 + 0.001 * tokens
        if prefills:
            device.cool(now_s)
            expected = device.prefill(expected + 0.001 * tokens, 0.002 * tokens)
        assert seconds == pytest.approx(expected, rel=2e-3)
        now_s += seconds
