"""GET /admin/memory lists the caches of the index."""

from tests.application import app_of, check_caches

NAMES = {
    "index blocks",
    "index key roots",
    "index keys",
    "index tails",
    "index tokenizers",
    "prompt tokens",
}


def test_memory_report_lists_every_cache_of_the_index() -> None:
    check_caches(app_of("--kv-index"), NAMES)
