"""The index in memory: its bound, its table of blocks, and that what it counts is what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from sys import getsizeof
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Offload, Remove, Store
from app.kvindex.holders import Copies, count_copies, with_holder, without_holder
from app.kvindex.memory import (
    BLOCK_BYTES,
    COPY_BYTES,
    REPEAT_BYTES,
    SHARE_BYTES,
    BlockTable,
    MemoryBackend,
    Segment,
    weigh_bytes,
    weigh_copies,
)
from tests.kvindex.held import content, source, store

A, B = source("a"), source("b")


def test_beyond_its_bound_the_block_that_was_not_used_for_longest_goes() -> None:
    backend = MemoryBackend(2)
    backend.apply(A, [store([1], [11]), store([2], [12])])
    backend.lookup([11])
    backend.apply(A, [store([3], [13])])
    assert set(content(backend, [11, 12, 13])) == {11, 13}
    backend.apply(A, [store([1], [11])])  # stored again: in use
    backend.apply(B, [store([4], [14])])
    assert set(content(backend, [11, 13, 14])) == {11, 14}
    assert backend.size().evicted == 2


def test_a_block_that_made_room_can_come_back_and_be_removed() -> None:
    backend = MemoryBackend(2)
    backend.apply(A, [store([1, 2, 3], [11, 12, 13])])
    assert set(content(backend, [11, 12, 13])) == {12, 13}
    backend.apply(A, [Offload(0, "gpu", [1])])
    assert 11 in content(backend, [11])
    assert backend.apply(A, [Remove(0, "gpu", [1, 2, 3])]).unknown == 0
    assert backend.size().copies == 0


def test_maps_forget_the_blocks_that_made_room() -> None:
    backend = MemoryBackend(100)
    for number in range(0, 10_000, 10):
        keys = range(number, number + 10)
        backend.apply(A, [store(keys, keys)])
    assert backend.size().copies == 100
    assert len(backend._maps[0].owned) < 100 * 5 / 4 + 64 + 20


@given(st.lists(st.tuples(st.sampled_from("srox"), *[st.integers(0, 9)] * 2), max_size=60), st.booleans())
def test_its_weight_is_the_sum_of_what_its_blocks_weigh(history: list[Any], bounded: bool) -> None:
    for weigh in (count_copies, weigh_bytes):
        backend = MemoryBackend((5 if weigh is count_copies else 3_000) if bounded else 1 << 40, weigh)
        for what, key, pod in history:
            tier = "cpu" if key % 3 else "gpu"
            match what:
                case "s":
                    operation: Any = store([key], [key + 10], tier)
                case "r":
                    operation = Remove(0, tier, [key])
                case "o":
                    operation = Offload(0, tier, [key])
                case _:
                    operation = Store(0, tier, [key], [(key + 10, key + 11)], [key + 10, key + 11])
            backend.apply(source(f"pod{pod}"), [operation])
        size, held = backend.size(), [copies for _, copies in backend.table]
        assert size.weight == sum(map(weigh, held)) <= (size.bound or 0)
        assert size.copies == sum(map(count_copies, held))
        assert all(held)


def test_repeats_can_be_reports_of_what_is_known() -> None:
    backend = MemoryBackend(count_repeats=False)
    backend.apply(A, [store([1], [11]), store([1], [11])])
    backend.apply(A, [Remove(0, "gpu", [1])])
    assert content(backend, [11]) == {}


def test_blocks_of_one_prompt_share_their_masks() -> None:
    backend = MemoryBackend()
    keys = range(1000)
    for pod in range(50):
        backend.apply(source(f"pod{pod}"), [store(keys, keys)])
    assert len({id(copies) for _, copies in backend.table}) == 1


def test_a_block_weighs_its_entry_and_one_for_each_copy() -> None:
    assert weigh_bytes(()) == 0
    one, two = weigh_bytes((1,)), weigh_bytes((3,))
    assert two - one == COPY_BYTES and one > BLOCK_BYTES + COPY_BYTES
    assert weigh_bytes((1 << 999,)) - one == getsizeof(1 << 999) - getsizeof(1)


@pytest.mark.parametrize(
    ("copies", "weight"),
    [
        ((), 0),
        ((0b101,), 2),
        ((0b1, 0b11), 3),
        ((1 << 4094,), 1),
        ((1 << 4095,), 2),
        ((1 << 8191, 1 << 4095), 5),
    ],
)
def test_a_copy_counts_once_more_for_each_half_of_its_share_that_a_mask_takes(
    copies: Copies, weight: int
) -> None:
    assert weigh_copies(copies) == weight


@given(st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_copy_takes_more_than_its_share(numbers: list[list[int]]) -> None:
    copies = tuple(sum(1 << number for number in set(some)) for some in numbers)
    assert weigh_bytes(copies) <= SHARE_BYTES * weigh_copies(copies)


def test_beyond_what_repeats_may_take_blocks_are_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.memory.REPEATS_BYTES", 2 * REPEAT_BYTES)
    backend, keys = MemoryBackend(), [1, 2, 3]
    backend.apply(A, [store(keys, keys), store(keys, keys), Remove(0, "gpu", keys)])
    assert set(content(backend, keys)) == {1, 2}
    backend.apply(A, [Remove(0, "gpu", [1]), store([2], [2]), store([3], [3]), store([3], [3])])
    backend.apply(A, [Remove(0, "gpu", keys)])
    assert set(content(backend, keys)) == {2, 3}


def test_a_map_is_swept_when_a_quarter_and_some_more_of_its_entries_lead_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.kvindex.memory.SPARE", 2)
    backend, lengths = MemoryBackend(8), []
    for key in range(1, 15):
        backend.apply(A, [store([key], [key])])
        lengths.append(len(backend._maps[0].owned))
    assert lengths == [*range(1, 14), 8]  # 6 of 14 are more than a quarter and 2
    backend.apply(A, [Remove(0, "gpu", [1])])
    assert (backend._maps[0].stale, backend.size().evicted) == (0, 6)


@pytest.mark.parametrize(("blocks", "pauses"), [(1, 0), (4, 0), (5, 1), (12, 2)])
def test_engines_are_cleared_a_slice_at_a_time(
    blocks: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kvindex.memory.SLICE", 4)
    backend = MemoryBackend()
    backend.apply(A, [store(range(blocks), range(blocks))])
    turns: list[None] = []
    monkeypatch.setattr("app.kvindex.memory.pause_if_possible", lambda: turns.append(None))
    assert backend.clear("a") == blocks and len(turns) == pauses
    assert (backend.size().copies, backend.pods()) == (0, [])


def test_maps_are_swept_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.memory.SLICE", 4)
    monkeypatch.setattr("app.kvindex.memory.SPARE", 0)
    backend = MemoryBackend(8)
    backend.apply(A, [store([key], [key]) for key in range(8)])
    turns: list[None] = []
    monkeypatch.setattr("app.kvindex.memory.pause_if_possible", lambda: turns.append(None))
    backend.apply(A, [store([key], [key]) for key in range(8, 18)])
    assert len(turns) == 5
    assert len(backend._maps[0].owned) == 8


EVERYBODY = [*range(6), *range(250, 262)]
"""Some of these share one of the table's dictionaries."""
Step = tuple[str, list[int], int, int]


def heavy(copies: Copies) -> int:
    """A block weighs more than its copies."""
    return 1 + 2 * count_copies(copies) if copies else 0


class Watched:
    """A table, what it should hold, and when the segment of each block was last in use."""

    def __init__(self, bound: int, weigh: Callable[[Copies], int]) -> None:
        self.evicted: dict[int, Copies] = {}
        self.table = BlockTable(bound, weigh, self.evicted.update)
        self.held: dict[int, Copies] = {}
        self.used: dict[int, int] = {}
        self.now = 0

    def segments(self) -> dict[int, Segment]:
        """Block -> segment."""
        found = {key: self.table._segment_of[key & 255].get(key) for key in EVERYBODY}
        return {key: segment for key, segment in found.items() if segment is not None}

    def do(self, step: Step) -> None:
        what, keys, tier, holder = step
        before = dict(self.held)
        match what:
            case "give":
                self._give(keys, tier, 1 << holder)
                before = dict(self.held)
            case "take":
                self._take(keys, 1 << holder)
                before, keys = dict(self.held), []
            case _:
                keys = self._ask(keys)
        if keys:
            segments = self.segments()
            touched = {segments[key] for key in keys if key in segments}
            self.used.update({key: self.now for key, segment in segments.items() if segment in touched})
        self.table.settle()
        assert self.evicted.items() <= before.items()
        self._check_who_went(sum(map(self.table.weigh, before.values())))
        self.now += 1

    def _give(self, keys: Sequence[int], tier: int, bit: int) -> None:
        for segment, copies, run in self.table.runs(keys):
            after = with_holder(copies, tier, bit)
            if after is copies:
                self.table.use(segment)
            else:
                self.table.put(segment, run, copies, after)
        self.held |= {key: with_holder(self.held.get(key, ()), tier, bit) for key in keys}

    def _take(self, keys: Sequence[int], bit: int) -> None:
        for key in keys:
            copies = self.held.get(key, ())
            left = without_holder(copies, None, bit)
            if left is not copies:
                self.table.reduce(key, self.table.weigh(copies) - self.table.weigh(left), left)
                self.held[key] = left
                if not left:
                    del self.held[key]

    def _ask(self, keys: Sequence[int]) -> list[int]:
        """Ask for blocks; those that are now in use: a table with room does not remember that."""
        end = next((at for at, key in enumerate(keys) if key not in self.held), len(keys))
        assert self.table.prefix(keys) == [self.held[key] for key in keys[:end]]
        return list(keys[:end]) if self.table.weight * 2 > self.table.bound else []

    def _check_who_went(self, weight: int) -> None:
        """Those went whose segments were not in use for longest, and not without need."""
        stays = {key: copies for key, copies in self.held.items() if key not in self.evicted}
        if self.evicted:
            assert weight > self.table.bound
            latest = max(self.used[key] for key in self.evicted)
            assert all(self.used[key] >= latest for key in stays)
        self.held = stays
        self.evicted.clear()

    def check(self) -> None:
        """What the table reckons is what it holds."""
        table, segments = self.table, self.segments()
        assert dict(table) == self.held and len(table) == len(self.held) == len(segments)
        assert [key in table for key in EVERYBODY] == [key in self.held for key in EVERYBODY]
        assert [table.get(key) for key in EVERYBODY] == [self.held.get(key, ()) for key in EVERYBODY]
        assert table.weight == sum(map(table.weigh, self.held.values())) <= table.bound
        for segment in {*segments.values(), table._open}:
            assert segment.blocks == {key: self.held[key] for key, own in segments.items() if own is segment}
            assert segment.weight == sum(map(table.weigh, segment.blocks.values()))
        for segment in set(segments.values()):
            assert segment in table._cache
            assert len(segment.blocks) == 1 or segment.weight <= table._grain


@contextmanager
def small(segment_blocks: int, segments: int) -> Iterator[None]:
    """Tables of small sizes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("SEGMENT_BLOCKS", segment_blocks),
            ("SEGMENTS", segments),
        ):
            patch.setattr(f"app.kvindex.memory.{name}", value)
        yield


some_keys = st.lists(st.sampled_from(EVERYBODY), min_size=1, max_size=6, unique=True)
in_a_row = st.builds(
    lambda start, count: EVERYBODY[start : start + count], st.integers(0, 12), st.integers(1, 7)
)
steps = st.tuples(
    st.sampled_from(["give", "give", "give", "take", "ask"]),
    some_keys | in_a_row,
    st.integers(0, 1),
    st.integers(0, 3),
)
sizes = st.tuples(st.sampled_from([1, 3, 4, 100]), st.sampled_from([1, 3, 100]))


@given(st.lists(steps, max_size=25), st.sampled_from([1, 6, 11, 25, 1000]), sizes, st.booleans())
def test_it_holds_what_a_dictionary_would_but_for_those_that_made_room(
    history: list[Step], bound: int, sized: tuple[int, int], is_heavy: bool
) -> None:
    with small(*sized):
        watched = Watched(bound, heavy if is_heavy else count_copies)
        for step in history:
            watched.do(step)
            watched.check()


def fill(table: BlockTable, *stored: Sequence[int]) -> None:
    """Store these blocks one after another, all with one copy."""
    for keys in stored:
        table.put(None, keys, (), (1,))
        table.settle()


def nobody_asks(blocks: Mapping[int, Copies]) -> None:
    """They made room."""


def test_the_block_goes_whose_latest_use_is_longest_ago() -> None:
    gone: list[int] = []
    with small(segment_blocks=1, segments=1):
        table = BlockTable(8, count_copies, gone.extend)
        fill(table, [1], [2], [3], [4], [5])
        for segment, _, _ in table.runs([1]):
            table.use(segment)
        table.settle()
        table.prefix([2])
        fill(table, [6], [7], [8])
        assert gone == []
        fill(table, [9], [10], [11], [12], [13])
    assert gone == [3, 4, 5, 1, 2]


def test_a_table_that_is_half_empty_does_not_remember_who_was_asked_for() -> None:
    gone: list[int] = []
    with small(segment_blocks=1, segments=1):
        table = BlockTable(8, count_copies, gone.extend)
        fill(table, [1], [2], [3], [4])
        table.prefix([1])
        fill(table, [5])
        table.prefix([2])
        fill(table, [6], [7], [8], [9], [10])
    assert gone == [1, 3]


@given(st.lists(steps, max_size=8), some_keys, sizes)
def test_runs_are_keys_in_a_row_of_one_segment_with_the_same_copies(
    history: list[Step], keys: list[int], sized: tuple[int, int]
) -> None:
    with small(*sized):
        watched = Watched(20, count_copies)
        for step in history:
            watched.do(step)
    segments = watched.segments()
    runs = [(segment, copies, list(run)) for segment, copies, run in watched.table.runs(keys)]
    assert [key for _, _, run in runs for key in run] == keys
    assert all(
        (segment, copies) == (segments.get(key), watched.held.get(key, ()))
        for segment, copies, run in runs
        for key in run
    )
    kinds = [(id(segment), copies) for segment, copies, _ in runs]
    assert all(one != other for one, other in zip(kinds, kinds[1:], strict=False))
    assert list(watched.table.runs([])) == []
