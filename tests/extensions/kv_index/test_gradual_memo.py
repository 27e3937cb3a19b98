"""A memo of large values keeps its limit, and frees a dropped generation little by little."""

import weakref

from app.core.base.caches import ENTRY_BYTES
from app.extensions.kv_index.gradual_memo import FREED_ENTRIES, GradualMemo

COUNT = 100
"""Number of entries of a full generation."""


class Value:
    """A value that a weak reference can refer to."""


def test_a_dropped_generation_is_freed_a_few_entries_at_a_time() -> None:
    limit_bytes = 2 * COUNT * ENTRY_BYTES
    memo: GradualMemo[int, Value] = GradualMemo(limit_bytes)
    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    for key in range(8 * COUNT):
        before = len(alive)
        value = Value()
        alive.add(value)
        memo.put(key, value, size_bytes=0)
        assert len(alive) >= before + 1 - FREED_ENTRIES
        assert len(alive) * ENTRY_BYTES == memo.size_bytes <= limit_bytes
    assert memo.get(8 * COUNT - 1) is value and memo.get(0) is None
