"""GET /admin/memory lists fault rules and the audit of clients."""

from tests.application import app_of, check_caches

NAMES = {"client audit", "fault scripts"}


def test_memory_lists_fault_rules_and_the_audit_of_clients() -> None:
    check_caches(app_of(), NAMES)
