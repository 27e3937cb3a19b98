"""Answers of rules with `times`, counted in shared memory."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.scripts.shared_uses import SLOTS, SharedUses, new_table

KEYS = st.sampled_from(
    [number.to_bytes(8, "little") for number in (1, 2, 1 + SLOTS, 1 + 2 * SLOTS)]
)
"""Three of the keys belong in the same slot."""


@pytest.fixture
def uses() -> Iterator[SharedUses]:
    with new_table() as file:
        yield SharedUses(file.fileno())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "remove"]), KEYS), max_size=60))
def test_keys_of_the_same_slot_are_counted_apart(calls: list[tuple[str, bytes]]) -> None:
    expected: Counter[bytes] = Counter()
    with new_table() as file:
        uses = SharedUses(file.fileno())
        for call, key in calls:
            if call == "take":
                assert uses.take(key, limit=3) is (expected[key] < 3)
                expected[key] = min(expected[key] + 1, 3)
            else:
                uses.remove(key)
                expected[key] = 0
            assert uses.count(key) == expected[key]


def test_a_full_table_forgets_one_count(uses: SharedUses) -> None:
    for number in range(1, SLOTS + 1):
        assert uses.take(number.to_bytes(8, "little"), limit=1)
    late = (SLOTS + 1).to_bytes(8, "little")
    assert uses.take(late, limit=1)
    assert not uses.take(late, limit=1)


def test_nothing_is_left_after_clear(uses: SharedUses) -> None:
    uses.take(b"rule one", limit=1)
    uses.clear()
    assert uses.count(b"rule one") == 0
