"""What the number of a batch says."""

from __future__ import annotations

import pytest

from app.kvindex.stream import REMEMBERED, Stream, Verdict


def stream(*applied: int) -> Stream:
    """One that has applied these numbers, each published at 100 seconds and its number."""
    made = Stream()
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
    made = Stream(10, 110.0)
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


def test_a_stream_remembers_a_bounded_number_of_batches() -> None:
    made = stream(*range(10_000))
    assert len(made._recent) == REMEMBERED
