"""What every run of the tests has in common."""

from hypothesis import HealthCheck, settings


def test_property_tests_have_no_deadline() -> None:
    current = settings.get_profile(settings.get_current_profile_name())
    assert current.deadline is None
    assert HealthCheck.too_slow in current.suppress_health_check
