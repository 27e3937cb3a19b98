"""A memo forgets what was not used lately, and only that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.kvcache.memo import ENTRY_BYTES, Memo

ONE = ENTRY_BYTES + 10
"""An entry of 10 bytes."""


@given(st.integers(2, 20), st.lists(st.integers(0, 30), max_size=200))
def test_a_memo_never_has_more_than_its_size_and_never_a_wrong_value(size: int, keys: list[int]) -> None:
    memo: Memo[int, int] = Memo(size * ONE)
    for key in keys:
        if (known := memo.get(key)) is None:
            memo.put(key, key * key, 10)
        assert known in (None, key * key)
        assert memo.get(key) == key * key
        assert memo.size_bytes == len(memo) * ONE <= memo.limit_bytes


@given(st.integers(4, 20), st.lists(st.integers(0, 1000), max_size=200))
def test_what_is_used_all_the_time_is_never_forgotten(size: int, others: list[int]) -> None:
    memo: Memo[int, int] = Memo(size * ONE)
    memo.put(-1, 7, 10)
    for key in set(others):
        memo.put(key, key, 10)
        assert memo.get(-1) == 7
