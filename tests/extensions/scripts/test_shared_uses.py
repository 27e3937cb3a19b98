"""Answers of rules with `times`, counted in shared memory."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.scripts.shared_uses import BUCKETS, WAYS, SharedUses, new_table

KEYS = st.sampled_from(
    [number.to_bytes(8, "little") for number in (1, 2, 1 + BUCKETS, 1 + 2 * BUCKETS)]
)
"""Three of the keys belong in the same bucket."""


@pytest.fixture
def uses() -> Iterator[SharedUses]:
    with new_table() as file:
        yield SharedUses(file.fileno())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "remove"]), KEYS), max_size=60))
def test_use_counts_of_rules_in_one_hash_bucket_are_separate(
    calls: list[tuple[str, bytes]],
) -> None:
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


def key_of(number: int) -> bytes:
    """Keys of the same bucket."""
    return (1 + number * BUCKETS).to_bytes(8, "little")


def test_full_hash_bucket_evicts_the_least_recently_changed_count(
    uses: SharedUses,
) -> None:
    for number in range(WAYS):
        assert uses.take(key_of(number), limit=2)
    assert uses.take(key_of(0), limit=2)
    assert uses.take(key_of(WAYS), limit=1)
    counts = [uses.count(key_of(number)) for number in range(WAYS + 1)]
    assert counts == [2, 0, *[1] * (WAYS - 1)]


def test_use_count_of_a_rule_survives_the_removal_of_other_rules(
    uses: SharedUses,
) -> None:
    assert uses.take(key_of(0), limit=1)
    for number in range(1, 3 * WAYS):
        assert uses.take(key_of(number), limit=1)
        uses.remove(key_of(number))
    assert uses.count(key_of(0)) == 1


def test_clear_removes_the_use_counts_of_every_rule(uses: SharedUses) -> None:
    uses.take(b"rule one", limit=1)
    uses.clear()
    assert uses.count(b"rule one") == 0
