"""GET /admin/memory lists the caches of the index."""

from tests.application import app_of, cache_sizes

NAMES = {
    "index blocks",
    "index key roots",
    "index keys",
    "index tails",
    "index tokenizers",
    "prompt tokens",
}


def test_memory_lists_every_cache_of_the_index() -> None:
    caches = cache_sizes(app_of("--kv-index"))
    assert set(caches) >= NAMES
    for name in NAMES:
        assert 0 <= caches[name]["size_bytes"] <= caches[name]["limit_bytes"], name
