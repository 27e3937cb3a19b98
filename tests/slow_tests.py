"""Tests without processes that take more than a second, and the stopwatch that finds others.

The stopwatch (`pytest --limit-time`, in `make test` and `make test-all`) counts the seconds in
which this process computes, because a machine that runs other things takes longer for everything.
A test that exceeds the limit runs a second time at once: the first test that uses a library also
imports it. The second time counts in units of a loop that is timed right before and after it, so
that a slow machine does not fail a fast test. A test that fails is never run again.
"""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest
from _pytest.runner import runtestprotocol

from tests.files_with_needs import WIRE

LIMIT_S = 1.0
"""Seconds of a core on the machine of `LOOP_S`."""
SLOW_TESTS: dict[str, str] = {}
"""Test, without its parameters -> why it takes so long. Shorten a test before you add it."""
LOOP_COUNT = 400_000
LOOP_S = 0.016
"""Seconds that `loop_seconds` takes on the machine on which `SLOW_TESTS` were found."""


def loop_seconds() -> float:
    """Returns the seconds of a core for a loop of fixed length: how slow the machine is now."""
    start = time.process_time()
    total = 0
    for number in range(LOOP_COUNT):
        total += number % 7
    return time.process_time() - start


class Stopwatch:
    """Fails a test that takes more than `LIMIT_S` and is not one of `SLOW_TESTS`."""

    def __init__(self) -> None:
        self._seconds = 0.0
        """How long the test of now takes, with the fixtures that are its own."""
        self._is_second_time = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Runs a test, and again if it takes too long."""
        name = item.nodeid.partition("[")[0]
        is_limited = item.get_closest_marker(WIRE) is None and name not in SLOW_TESTS
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._seconds = 0.0
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        has_passed = all(report.passed for report in reports)
        if is_limited and has_passed and self._seconds > LIMIT_S:
            self._seconds = 0.0
            self._is_second_time = True
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            self._is_second_time = False
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        """Times the fixtures of a single test."""
        start = time.process_time()
        result = yield
        if fixturedef.scope == "function":
            self._seconds += time.process_time() - start
        return result

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Times a test, and fails it if it takes too long the second time, too."""
        loop_before = loop_seconds() if self._is_second_time else 0.0
        start = time.process_time()
        result = yield
        self._seconds += time.process_time() - start
        if self._is_second_time:
            slowness = max(1.0, loop_before / LOOP_S, loop_seconds() / LOOP_S)
            seconds = self._seconds / slowness
            if seconds > LIMIT_S:
                pytest.fail(
                    f"takes {seconds:.1f} s, more than {LIMIT_S:.0f} s: shorten it, or list it "
                    "with a reason in tests/slow_tests.py",
                    pytrace=False,
                )
        return result
