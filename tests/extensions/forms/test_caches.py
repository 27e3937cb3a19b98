"""GET /admin/memory lists compiled schemas."""

from tests.application import app_of, check_caches

NAMES = {"schemas"}


def test_memory_report_lists_compiled_schemas() -> None:
    check_caches(app_of(), NAMES)
