"""GET /admin/memory lists stored responses."""

from tests.application import app_of, cache_sizes

NAMES = {"responses"}


def test_memory_lists_stored_responses() -> None:
    caches = cache_sizes(app_of())
    assert set(caches) >= NAMES
    for name in NAMES:
        assert 0 <= caches[name]["size_bytes"] <= caches[name]["limit_bytes"], name
