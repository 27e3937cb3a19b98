"""Prompts that were encoded before are remembered, within a limit of memory."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from app.tokenization import PromptMemo
from app.tokenization.memo import ID_BYTES


def test_what_was_put_is_there() -> None:
    memo = PromptMemo(10_000)
    assert memo.get(b"a") is None
    memo.put(b"a", [1, 2, 3])
    assert memo.get(b"a") == [1, 2, 3]
    memo.put(b"a", [4])
    assert memo.get(b"a") == [4]


def test_what_was_not_used_for_longest_goes() -> None:
    memo = PromptMemo(10_000)
    for number in range(1_000):
        memo.put(str(number).encode(), [number])
        assert memo.get(b"0") == [0]
        assert memo.size_bytes <= memo.limit_bytes
    assert memo.get(b"1") is None
    assert memo.get(b"999") == [999]


def test_what_would_take_most_of_the_place_is_not_kept() -> None:
    memo = PromptMemo(10_000)
    memo.put(b"a", list(range(1_000)))
    memo.put(b"b" * 5_000, [1])
    assert (memo.get(b"a"), memo.get(b"b" * 5_000), memo.size_bytes) == (None, None, 0)


@pytest.mark.parametrize(("kind", "id_bytes"), [(list, ID_BYTES), (partial(array, "I"), 4)])
def test_the_size_is_what_the_memo_holds(kind: Callable[[list[int]], Sequence[int]], id_bytes: int) -> None:
    memo: PromptMemo[Sequence[int]] = PromptMemo(1 << 20, id_bytes)
    tracemalloc.start()
    try:
        for number in range(5_000):
            ids = kind([1_000 * number + k for k in range(number % 60)])
            memo.put(f"[{number}, the prompt of a chat]".encode(), ids)
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.9 * memo.limit_bytes < memo.size_bytes <= memo.limit_bytes
    assert 0.9 * held_bytes < memo.size_bytes < 1.2 * held_bytes


def test_replacing_an_entry_counts_it_once() -> None:
    memo = PromptMemo(10_000)
    memo.put(b"a", [1])
    size_bytes = memo.size_bytes
    memo.put(b"a", [2])
    assert memo.size_bytes == size_bytes
