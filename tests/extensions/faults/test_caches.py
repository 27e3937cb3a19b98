"""GET /admin/memory lists fault rules and the audit of clients."""

from tests.application import app_of, cache_sizes

NAMES = {"client audit", "fault scripts"}


def test_memory_lists_fault_rules_and_the_audit_of_clients() -> None:
    caches = cache_sizes(app_of())
    assert set(caches) >= NAMES
    for name in NAMES:
        assert 0 <= caches[name]["size_bytes"] <= caches[name]["limit_bytes"], name
