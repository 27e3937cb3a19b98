"""Use of pods over time, summed over a fleet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.runs.timeline import FIRST_BIN_S, MAX_BINS, Timeline, total_use

SPANS = st.lists(
    st.tuples(st.floats(0, 4 * MAX_BINS * FIRST_BIN_S), st.integers(0, 9), st.integers(0, 9)),
    max_size=20,
)
"""Start, sequences and blocks of each."""


def recorded(spans: list[tuple[float, int, int]]) -> Timeline:
    timeline = Timeline(0.0)
    for start_s, sequences, blocks in spans:
        timeline.record(start_s, start_s + 0.5, sequences=sequences, blocks=blocks)
    return timeline


@given(st.lists(SPANS, min_size=1, max_size=4))
def test_use_of_a_fleet_equals_the_use_of_one_pod_with_all_steps(
    pods: list[list[tuple[float, int, int]]],
) -> None:
    total = total_use(map(recorded, pods))
    alone = recorded([span for spans in pods for span in spans])
    assert total.bin_s == alone.bin_s
    assert total.sequences == pytest.approx(alone.sequences)
    assert total.blocks == pytest.approx(alone.blocks)
    assert (total.max_sequences, total.max_blocks) == (alone.max_sequences, alone.max_blocks)
