"""A run of all tests: the folders that it has begun, and the sentence at its end."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import pytest

from tests.drawn import SHARE, tries_all
from tests.files_with_needs import WIRE
from tests.needs import TARGETS, missing_needs

NESTED = "extensions"
"""Folder whose folders are parts, too."""


def part_of(test: str) -> str:
    """Returns the part of a test, by its name: a folder in `tests`, or that of an extension."""
    folders = test.partition("::")[0].split("/")[:-1]
    if NESTED in folders[:2]:
        return "/".join(folders[:3])
    return "/".join(folders[:2])


class Parts:
    """Replaces the dots of pytest by one line for each part that begins, and by the failures."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._start = time.monotonic()
        self._count = 0
        """Tests of this run."""
        self._done = 0
        self._begun: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts the tests of a run in this process."""
        self._count = max(self._count, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Counts the tests of a run in several processes, each of which collects all of them."""
        self._count = max(self._count, len(ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Names a part whose first test begins."""
        part = part_of(nodeid)
        if part in self._begun:
            return
        self._begun.add(part)
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        percent = 100 * self._done // max(self._count, 1)
        self._reporter.write_line(f"[{percent:3}%, {minutes}:{seconds:02}] {part}")
        self._reporter.flush()  # for a log file: it shows where a run hangs

    def pytest_runtest_logfinish(self) -> None:
        """Counts a test that has ended."""
        self._done += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """Returns the status of a test without the letter that pytest prints."""
        if hasattr(report, "wasxfail") or not isinstance(report, pytest.TestReport):
            return None
        if report.failed:
            category = "failed" if report.when == "call" else "error"
            return category, "", category.upper()
        if report.skipped:
            return "skipped", "", ""
        return ("passed" if report.when == "call" else ""), "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Names a test that fails, minutes before its traceback is printed."""
        if report.failed:
            self._reporter.write_line(f"FAILED {report.nodeid}", red=True)
            self._reporter.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Ends the output with the sentence, below the counts of pytest."""
        result = yield
        stats = self._reporter.stats
        self._reporter.write_line(sentence(stats, time.monotonic() - self._start))
        return result


def skip_reasons(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Returns why each of the skipped tests was skipped."""
    reasons = []
    for report in reports:
        reason = ""
        if isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
        reasons.append(reason)
    return reasons


def sentence(stats: Mapping[str, Sequence[pytest.TestReport]], seconds: float) -> str:
    """Returns what passed and failed, what was skipped and why, and how to run the rest."""
    passed = stats.get("passed", ())
    wire_count = sum(WIRE in report.keywords for report in passed)
    failed_count = len(stats.get("failed", ())) + len(stats.get("error", ()))
    reasons = skip_reasons(stats.get("skipped", ()))
    parts = [
        f"Passed: {len(passed) - wire_count:,} tests without processes and {wire_count:,} of "
        f"servers and commands, in {seconds / 60:.1f} minutes",
        f"skipped: {', '.join(skipped_parts(reasons)) or 'none'}",
        f"to run the rest: {', '.join(other_runs(reasons))}",
    ]
    if failed_count:
        parts.insert(0, f"FAILED: {failed_count:,}")
    return "; ".join(parts) + "."


def skipped_parts(reasons: Sequence[str]) -> Iterator[str]:
    """Yields for what want tests were skipped, and how many."""
    other_count = len(reasons)
    for count, need in missing_needs(reasons):
        yield f"{count:,} for want of {need.thing} ({need.remedy})"
        other_count -= count
    if other_count:
        yield f"{other_count:,} for reasons of their own (pytest -rs)"


def other_runs(reasons: Sequence[str]) -> Iterator[str]:
    """Yields the make targets of skipped tests, and of those that are no part of `make test-all`."""
    groups = {need.group for _, need in missing_needs(reasons)} | {"servers"}
    yield from (target for group, target in TARGETS.items() if group in groups)
    weekly = "make weekly"
    if not tries_all():
        weekly += f" (also the examples of hostile files, of which this run drew one in {SHARE})"
    yield weekly
