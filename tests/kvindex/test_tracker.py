"""What the number of a batch says."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex import streams
from app.kvindex.streams import REMEMBERED, SequenceTracker, Verdict


def stream(*applied: int) -> SequenceTracker:
    """One that has applied these numbers, each published at 100 seconds and its number."""
    made = SequenceTracker()
    for number in applied:
        made.apply(number, 100.0 + number)
    return made


@pytest.mark.parametrize(
    ("applied", "sequence", "ts", "verdict"),
    [
        ([], 7, 1.0, Verdict.FIRST),
        ([7], 8, 108.0, Verdict.NEXT),
        ([7], 8, 1.0, Verdict.NEXT),  # clocks may be set back
        ([7], 9, 109.0, Verdict.GAP),
        ([7], 7, 107.0, Verdict.DUPLICATE),
        ([5, 6, 7], 5, 105.0, Verdict.DUPLICATE),
        ([5, 7], 6, 106.0, Verdict.LATE),
        ([5, 6, 7], 5, 300.0, Verdict.RESTART),
        ([5, 6, 7], 0, 300.0, Verdict.RESTART),
        ([5, 6, 7], 0, 1.0, Verdict.RESTART),
        ([0], 0, 300.0, Verdict.RESTART),
        ([0, 1 << 63], 1, 300.0, Verdict.RESTART),  # too long ago to be known
        ([7], (1 << 64) - 1, 300.0, Verdict.GAP),
    ],
)
def test_numbers_tell_what_a_batch_is(applied: list[int], sequence: int, ts: float, verdict: Verdict) -> None:
    assert stream(*applied).judge(sequence, ts) is verdict


def test_a_late_batch_is_a_duplicate_the_second_time() -> None:
    made = stream(5, 7)
    made.apply(6, 106.0)
    assert made.judge(6, 106.0) is Verdict.DUPLICATE
    assert made.applied == 7 and made.missing(9) == 1


def test_what_was_replayed_is_a_duplicate_when_it_comes_by_itself() -> None:
    made = stream(5)
    for number in range(6, 500):
        made.apply(number, 100.0 + number, replayed=True)
    assert made.judge(6, 106.0) is Verdict.DUPLICATE
    assert made.judge(6, 9_999.0) is Verdict.RESTART


def test_a_stream_can_be_taken_up_where_another_left_it() -> None:
    made = SequenceTracker(10, 110.0)
    assert made.judge(11, 111.0) is Verdict.NEXT
    assert made.judge(14, 114.0) is Verdict.GAP and made.missing(14) == 3
    assert made.judge(9, 109.0) is Verdict.DUPLICATE
    assert made.judge(0, 200.0) is Verdict.RESTART


def test_a_message_that_cannot_be_read_leaves_no_gap() -> None:
    made = stream(5)
    made.skip(6)
    assert made.judge(7, 107.0) is Verdict.NEXT
    made.skip(20)
    assert made.judge(7, 107.0) is Verdict.NEXT


def test_after_a_restart_nothing_is_known() -> None:
    made = stream(5, 6)
    made.restart()
    assert made.judge(6, 106.0) is Verdict.FIRST


@pytest.mark.parametrize("applied", [(), (5, 6)], ids=["new", "restarted"])
def test_what_came_before_the_first_number_of_a_replay_is_no_restart(applied: tuple[int, ...]) -> None:
    made = stream(*applied)
    if applied:
        made.restart()
    made.apply(3, 103.0, replayed=True)
    assert made.judge(0, 100.0) is Verdict.DUPLICATE
    assert made.judge(0, 104.0) is Verdict.RESTART


def test_the_latest_64_batches_are_known_again() -> None:
    made = stream(*range(1000))
    assert made.judge(936, 1036.0) is Verdict.DUPLICATE
    assert made.judge(935, 1035.0) is Verdict.RESTART


def test_as_many_missing_numbers_are_known_to_be_missing() -> None:
    made = stream(5, 1000)
    assert made.judge(937, 1037.0) is Verdict.LATE
    assert made.judge(936, 1036.0) is Verdict.RESTART


def test_a_stream_remembers_a_bounded_number_of_batches() -> None:
    made = stream(*range(10_000))
    assert len(made._recent) == REMEMBERED


class History:
    """What `SequenceTracker` says, from the list of all batches that were applied since the last restart."""

    def __init__(self, remembered: int) -> None:
        self.remembered = remembered
        self.forget()

    def forget(self) -> None:
        self.applied: list[tuple[int, float]] = []
        self.received = -1

    def apply(self, sequence: int, ts: float, replayed: bool) -> None:
        self.applied.append((sequence, ts))
        if not replayed:
            self.received = max(self.received, sequence)

    def last(self) -> int:
        return max(sequence for sequence, _ in self.applied)

    def skip(self, sequence: int) -> None:
        if self.applied and sequence == self.last() + 1:
            self.apply(sequence, max(ts for _, ts in self.applied), False)

    def missing(self, sequence: int) -> int:
        return len(range(self.last() + 1, sequence)) if self.applied else sequence

    def judge(self, sequence: int, ts: float) -> Verdict:
        if not self.applied:
            return Verdict.FIRST
        ahead = sequence - self.last()
        if ahead > 0:
            return Verdict.NEXT if ahead == 1 else Verdict.GAP
        times = dict(self.applied)
        if sequence >= self.applied[0][0] and -ahead < self.remembered:
            if sequence not in times:
                return Verdict.LATE
            if times[sequence] == ts:
                return Verdict.DUPLICATE
        came_in_a_replay = sequence > self.received and ts <= max(ts for _, ts in self.applied)
        return Verdict.DUPLICATE if came_in_a_replay else Verdict.RESTART


Deed = tuple[Literal["apply", "replay", "skip", "restart"], int, float]
deeds = st.lists(
    st.tuples(
        st.sampled_from(["apply", "apply", "apply", "replay", "replay", "skip", "restart"]),
        st.integers(0, 12),
        st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    ),
    max_size=12,
)


@given(deeds, st.integers(1, 6))
def test_a_stream_says_what_the_whole_history_says(done: list[Deed], remembered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "REMEMBERED", remembered)
        made, history = SequenceTracker(), History(remembered)
        for deed, sequence, ts in done:
            match deed:
                case "skip":
                    made.skip(sequence)
                    history.skip(sequence)
                case "restart":
                    made.restart()
                    history.forget()
                case _:
                    made.apply(sequence, ts, replayed=deed == "replay")
                    history.apply(sequence, ts, deed == "replay")
            for number in range(14):
                assert made.missing(number) == history.missing(number)
                for ts in (0.5, 1.0, 2.0, 3.0, 4.0):
                    assert made.judge(number, ts) is history.judge(number, ts)
