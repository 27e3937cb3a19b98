"""Fewer operations that do the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Clear, Offload, Operation, Remove, Store
from app.kvindex.joining import joined
from app.kvindex.memory import MemoryBackend
from tests.kvindex.held import content, source, store

A = source("a")


def test_neighbours_of_one_kind_become_one() -> None:
    operations: list[Operation] = [
        store([1], [11]),
        store([2, 3], [12, 13]),
        Remove(0, "gpu", [1]),
        Remove(0, "gpu", [2]),
        Remove(0, "cpu", [2]),
        Clear(),
        store([4], [14]),
    ]
    assert joined(operations) == [
        store([1, 2, 3], [11, 12, 13]),
        Remove(0, "gpu", [1, 2]),
        Remove(0, "cpu", [2]),
        Clear(),
        store([4], [14]),
    ]


def test_what_differs_stays_apart() -> None:
    operations: list[Operation] = [
        store([1], [11]),
        store([2], [12], "cpu"),
        store([3], [13], "cpu", group=1),
        store([4], [14], "cpu", group=1, adapter="x"),
        store([5], [15], "cpu", group=1, adapter="x", scored=True),
        store([5], [15], "cpu", group=1, adapter="x", scored=True),
        Store(1, "cpu", [6], [(15,)], [15], [(5, (15,))], True, "x"),
        store([7], [17], "cpu", group=1, adapter="x", scored=True),
    ]
    assert joined(operations) == operations
    assert joined([]) == []


keys = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True)


@given(st.lists(st.tuples(st.sampled_from("ssrroc"), keys, st.booleans()), max_size=20))
def test_they_leave_the_same(history: list[Any]) -> None:
    operations: list[Operation] = []
    for what, engine, cpu in history:
        tier = "cpu" if cpu else "gpu"
        match what:
            case "s":
                operations.append(store(engine, [key + 10 for key in engine], tier))
            case "r":
                operations.append(Remove(0, tier, engine))
            case "o":
                operations.append(Offload(0, tier, engine))
            case _:
                operations.append(Clear())
    one, two = MemoryBackend(), MemoryBackend()
    each = one.apply(A, operations)
    together = two.apply(A, joined(operations))
    assert (each.added, each.removed, each.unknown) == (together.added, together.removed, together.unknown)
    assert content(one, range(20)) == content(two, range(20))
    assert one.size() == two.size() and one._repeats == two._repeats
