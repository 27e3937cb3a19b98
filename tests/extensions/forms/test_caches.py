"""GET /admin/memory lists compiled schemas."""

from tests.application import app_of, cache_sizes

NAMES = {"schemas"}


def test_memory_lists_compiled_schemas() -> None:
    caches = cache_sizes(app_of())
    assert set(caches) >= NAMES
    for name in NAMES:
        assert 0 <= caches[name]["size_bytes"] <= caches[name]["limit_bytes"], name
