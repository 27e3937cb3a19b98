"""Tests of tracing are skipped without the packages of OpenTelemetry."""

from tests.not_imported import skipped_without

pytest_pycollect_makemodule = skipped_without("tracing")
