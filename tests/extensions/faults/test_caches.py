"""GET /admin/memory lists fault rules and the audit of clients."""

from tests.application import app_of, check_caches

NAMES = {"client audit", "fault scripts"}


def test_memory_report_lists_fault_rules_and_the_client_audit() -> None:
    check_caches(app_of(), NAMES)
