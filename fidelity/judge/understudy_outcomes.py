"""pytest plugin that writes the outcome of each test, and each failed collection, as JSON."""

import json
from pathlib import Path

import pytest

OUTCOMES = Path("outcomes.jsonl")
"""File in the working directory; one line for each outcome."""
MAX_REASON_LENGTH = 300


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes the outcome of a test as a line of JSON."""
    if report.when == "call" or report.outcome != "passed":
        write_outcome(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Writes a file that cannot be collected as one that has failed."""
    if report.outcome == "failed":
        write_outcome(report)


def write_outcome(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Writes a line of JSON with the id, the outcome and the reason of a failure."""
    reason = ""
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(crash.message if crash else report.longrepr)[-MAX_REASON_LENGTH:]
    line = {"test": report.nodeid, "outcome": report.outcome, "reason": reason}
    with OUTCOMES.open("a") as outcomes:
        print(json.dumps(line), file=outcomes)
