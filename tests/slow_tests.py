"""Tests without processes that take more than a second, and the stopwatch that finds others.

The stopwatch (`pytest --limit-time`, in `make test` and `make test-all`) counts the seconds in
which this process computes, because a machine that runs other things takes longer for everything.
A test that exceeds the limit runs a second time at once: the first test that uses a library also
imports it. The second time counts in units of a loop that is timed right before and after it, so
that a slow machine does not fail a fast test, and may take half as much more: other work on a core
slows a test and the loop differently. A test that fails is never run again.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping

import pytest
from _pytest.runner import runtestprotocol

from tests.files_with_needs import WIRE

LIMIT_S = 1.0
"""Seconds of a core on the machine of `LOOP_S`."""
SECOND_LIMIT = 1.5
"""The limit of the second time: tests of 0.9 s took 1.1 and 1.2 beside four busy processes."""
SLOW_TESTS: Mapping[str, Mapping[str, str]] = {
    "tests/fidelity/oracle/test_kept.py": {
        "test_servers_answer_as_the_release_that_they_play": (
            "hundreds of requests to each release whose answers are kept"
        ),
    },
    "tests/core/engine/test_scheduler.py": {
        "test_every_step_equals_the_step_of_a_simple_reference_scheduler": (
            "100 random loads, step by step in two schedulers"
        ),
    },
    "tests/workbench/check/test_hostile.py": {
        "test_only_too_many_command_lines_are_refused": (
            "a file with as many command lines as are read"
        ),
        "test_hostile_file_is_read_or_refused": "files as large as those that are read",
    },
    "tests/workbench/check/test_hostile_clusters.py": {
        "test_values_of_wrong_types_are_read_or_refused": "checks 200 files",
        "test_damaged_file_is_read_or_refused": "some damaged files have a MiB",
        "test_hostile_file_is_read_or_refused": "files as large as those that are read",
    },
    "tests/workbench/check/test_model_tables.py": {
        "test_serve_starts_each_known_model_with_its_length": "reads 400 command lines",
    },
    "tests/workbench/check/test_watch_hostile.py": {
        "test_hostile_document_is_read_or_refused": "documents as large as those that are read",
    },
    "tests/extensions/datasets/test_command.py": {
        "test_conversation_without_an_end_is_rejected_but_not_a_large_file": "the limit is 16 MiB",
    },
    "tests/extensions/handoff/test_properties.py": {
        "TestCountedHandoffs::runTest": "25 histories, of 30 steps each",
        "TestHandoffs::runTest": "25 histories, of 30 steps each",
        "TestSteppedHandoffs::runTest": "25 histories, of 30 steps each",
    },
    "tests/extensions/journal/test_journal.py": {
        "test_journal_is_limited_by_number_of_entries_and_bytes": "fills a journal to its limits",
    },
    "tests/extensions/kv_index/test_churn.py": {
        "test_index_equals_the_union_of_the_caches_after_a_day_of_events": "the events of a day",
    },
    "tests/extensions/kv_index/test_parts.py": {
        "test_split_events_have_the_same_effect_as_whole_events": ("200 lists of events"),
        "test_other_greenlets_run_while_a_long_batch_is_indexed": "as many blocks as take long",
    },
    "tests/extensions/costs/test_error_model.py": {
        "test_intervals_contain_74_to_88_percent_of_errors_under_unseen_loads": (
            "fits the error model once for each load"
        ),
    },
    "tests/extensions/costs/test_power.py": {
        "test_simulated_power_of_a_measured_device_is_16_to_23_percent_too_low": (
            "simulates all measured runs"
        ),
    },
    "tests/workbench/runs/test_autoscaled.py": {
        "test_gpu_hours_include_loading_and_draining_pods": (
            "simulates a fleet that grows and shrinks"
        ),
    },
    "tests/workbench/runs/test_benchmark_files.py": {
        "test_only_documents_and_lines_are_limited_but_not_a_file_of_lines": (
            "four files above the least limit, of 1 MiB"
        ),
    },
    "tests/workbench/runs/test_calibrate.py": {
        "test_fit_recovers_and_identifies_the_cost_constants": "a whole calibration",
    },
    "tests/workbench/plan/test_plan_routing.py": {
        "test_plan_prints_its_policy_and_the_pods_of_random_routing": "plans with two policies",
        "test_plan_of_shared_prefixes_shows_what_prefix_aware_routing_saves": (
            "plans with two policies"
        ),
    },
    "tests/workbench/plan/test_question.py": {
        "test_question_without_devices_takes_few_simulations_and_is_repeatable": (
            "98 simulations, of the fleets of all devices"
        ),
    },
    "tests/workbench/test_documents.py": {
        "test_simulate_page_shows_the_output_of_its_commands": (
            "the commands of the page, as printed"
        ),
    },
    "tests/workbench/imports/test_foreign_recordings.py": {
        "test_hostile_file_raises_at_most_a_config_error": "reads YAML without the C library",
    },
    "tests/workbench/imports/test_hostile_fixtures.py": {
        "test_script_of_fixtures_with_other_types_is_valid": (
            "imports hundreds of files, and checks their scripts"
        ),
        "test_damaged_fixtures_are_read_or_refused": "some damaged files have a MiB",
    },
    "tests/extensions/recording/test_writer.py": {
        "test_exchange_that_no_reader_takes_is_left_out_with_a_warning": "the limit is 16 MiB",
    },
    "tests/workbench/study/test_compare.py": {
        "test_other_engine_is_above_the_limit_until_calibrated": "calibrates an engine",
        "test_unknown_device_needs_a_profile_or_a_calibration": "calibrates an engine",
    },
    "tests/workbench/study/test_decide.py": {
        "test_differences_up_to_the_error_of_the_comparison_are_not_distinguishable": "two plans",
        "test_fewest_pods_that_are_not_worse_come_with_their_risk": "two plans",
        "test_overload_is_named": "simulates 40 times the load",
        "test_report_has_no_addresses_and_no_markup_of_names": "simulates 40 times the load",
    },
    "tests/test_foreign_data.py": {
        "test_only_the_listed_modules_decode_data_themselves": "parses half of the modules",
    },
}
"""File -> test, without its parameters -> why it takes so long. Shorten a test before you add it."""
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


def is_listed(test: str) -> bool:
    """Returns whether a test is one of `SLOW_TESTS`."""
    file, _, name = test.partition("::")
    return name.partition("[")[0] in SLOW_TESTS.get(file, {})


class Stopwatch:
    """Fails a test that takes more than `LIMIT_S` and is not one of `SLOW_TESTS`."""

    def __init__(self) -> None:
        self._seconds = 0.0
        """How long the test of now takes, with the fixtures that are its own."""
        self._is_second_time = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Runs a test, and again if it takes too long."""
        is_limited = item.get_closest_marker(WIRE) is None and not is_listed(item.nodeid)
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
            if seconds > SECOND_LIMIT * LIMIT_S:
                pytest.fail(
                    f"takes {seconds:.1f} s, more than {LIMIT_S:.0f} s: shorten it, or list it "
                    "with a reason in tests/slow_tests.py",
                    pytrace=False,
                )
        return result
