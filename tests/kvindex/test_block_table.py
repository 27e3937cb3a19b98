"""The table of blocks against a dictionary: what it holds, what it weighs, and who makes room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.holders import Copies, count_copies, with_holder, without_holder
from app.kvindex.tables import BlockTable, Segment

EVERYBODY = [*range(6), *range(250, 262)]
"""Some of these share one of the table's dictionaries."""
Step = tuple[str, list[int], int, int]


def heavy(copies: Copies) -> int:
    """A block weighs more than its copies."""
    return 1 + 2 * count_copies(copies) if copies else 0


class Watched:
    """A table, what it should hold, and when the segment of each block was last in use.

    Uses between two looks at the weights count as one: only then the cache is told of them.
    """

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
        self.now += not self.table._used

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
            assert weight > self.table.bound or self.table._used == {}
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
            assert segment.weighed > 0 if segment in table._cache else segment.weighed == 0
        assert table._cache.currsize == sum(segment.weighed for segment in table._cache)

    def check_settled(self) -> None:
        """No segment is larger than it may be, and the cache knows what all of them weigh."""
        self.table._settle()
        self.held = {key: copies for key, copies in self.held.items() if key not in self.evicted}
        self.check()
        for segment in set(self.segments().values()):
            assert segment.weighed == segment.weight and segment in self.table._cache
            assert len(segment.blocks) == 1 or segment.weight <= self.table._grain
        assert self.table._cache.currsize == self.table.weight


@contextmanager
def small(segment_blocks: int, segments: int, unsettled: int) -> Iterator[None]:
    """Tables of small sizes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("SEGMENT_BLOCKS", segment_blocks),
            ("SEGMENTS", segments),
            ("UNSETTLED", unsettled),
        ):
            patch.setattr(f"app.kvindex.tables.{name}", value)
        yield


def test_a_segment_that_weighs_what_it_did_hides_no_other_that_weighs_less() -> None:
    with small(segment_blocks=2, segments=1, unsettled=100):
        watched = Watched(100, count_copies)
        for keys in ([0, 1], [2, 3]):
            watched.do(("give", keys, 0, 0))
        watched.check_settled()
        for step in (("take", [0], 0, 0), ("give", [1], 0, 1), ("take", [2], 0, 0)):
            watched.do(step)
        watched.check_settled()


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
sizes = st.tuples(st.sampled_from([1, 3, 4, 100]), st.sampled_from([1, 3, 100]), st.sampled_from([0, 2, 100]))


@given(st.lists(steps, max_size=25), st.sampled_from([1, 6, 11, 25, 1000]), sizes, st.booleans())
def test_it_holds_what_a_dictionary_would_but_for_those_that_made_room(
    history: list[Step], bound: int, sized: tuple[int, int, int], is_heavy: bool
) -> None:
    with small(*sized):
        watched = Watched(bound, heavy if is_heavy else count_copies)
        for step in history:
            watched.do(step)
            watched.check()
        watched.check_settled()


@given(st.lists(steps, max_size=8), some_keys, sizes)
def test_runs_are_keys_in_a_row_of_one_segment_with_the_same_copies(
    history: list[Step], keys: list[int], sized: tuple[int, int, int]
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


def fill(table: BlockTable, *stored: Sequence[int]) -> None:
    """Store these blocks one after another, all with one copy."""
    for keys in stored:
        table.put(None, keys, (), (1,))
        table.settle()


def together(table: BlockTable, keys: Sequence[int]) -> list[list[int]]:
    """Which of the blocks share a segment."""
    return [list(run) for _, _, run in table.runs(keys)]


def nobody_asks(blocks: Mapping[int, Copies]) -> None:
    """They made room."""


def test_blocks_that_were_stored_around_the_same_time_share_a_segment() -> None:
    with small(segment_blocks=3, segments=1, unsettled=0):
        table = BlockTable(100, count_copies, nobody_asks)
        fill(table, [1], [2, 3], [4], [5, 6, 7], [8], range(10, 17))
    assert together(table, range(1, 9)) == [[1, 2, 3], [4], [5, 6, 7], [8]]
    assert together(table, range(10, 17)) == [[10, 11, 12], [13, 14, 15], [16]]


def test_a_segment_that_weighs_too_much_goes_on_in_its_newer_half() -> None:
    with small(segment_blocks=100, segments=4, unsettled=0):
        table = BlockTable(12, count_copies, nobody_asks)
        fill(table, [1, 2, 3, 4, 5], [6], [7])
    assert together(table, range(1, 8)) == [[1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("unsettled", [0, 100])
def test_the_block_goes_whose_latest_use_is_longest_ago(unsettled: int) -> None:
    gone: list[int] = []
    with small(segment_blocks=1, segments=1, unsettled=unsettled):
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
    with small(segment_blocks=1, segments=1, unsettled=0):
        table = BlockTable(8, count_copies, gone.extend)
        fill(table, [1], [2], [3], [4])
        table.prefix([1])
        fill(table, [5])
        table.prefix([2])
        fill(table, [6], [7], [8], [9], [10])
    assert gone == [1, 3]
