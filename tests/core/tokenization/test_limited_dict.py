"""A dictionary that clears itself at a limit of memory, as the caches of the fast path do."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.base.caches import LimitedDict

LIMIT_BYTES = 100
ENTRIES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 150)), max_size=60)


@given(ENTRIES)
def test_entries_never_exceed_the_limit_and_the_latest_is_kept(
    entries: list[tuple[int, int]],
) -> None:
    cache: LimitedDict[int, int] = LimitedDict(LIMIT_BYTES)
    for key, entry_bytes in entries:
        if key in cache:
            continue
        cache.add(key, value=entry_bytes, entry_bytes=entry_bytes)
        assert cache.size_bytes == sum(cache.values()) <= LIMIT_BYTES, "the size of what is kept"
        assert (key in cache) == (entry_bytes <= LIMIT_BYTES), "only an entry that fits is kept"
