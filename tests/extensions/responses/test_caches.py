"""GET /admin/memory lists stored responses."""

from tests.application import app_of, check_caches

NAMES = {"responses"}


def test_memory_report_lists_stored_responses() -> None:
    check_caches(app_of(), NAMES)
