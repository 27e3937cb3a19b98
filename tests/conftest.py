"""What tests of several rooms share, and which of them are left out when (README.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from tests.needs import NEEDS, skipped_line
from tests.processes import refuse_process, starts_process
from tests.running_server import GENERAL_WAY, RunningServer, running_server

LEFT_OUT = ("server", "slow", *(need.marker for need in NEEDS))
"""The markers of tests that do not run under --fast."""
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)  # the same examples every time, and the first that fails will do


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A server with its defaults: the embedded tokenizer, no latency. Shared, so leave it as it was."""
    with running_server() as running:
        yield running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="only tests that start no process, need nothing and take no time"
    )
    parser.addoption(
        "--general-way", action="store_true", help="servers do without the fast path, as under other workers"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("general_way"):
        os.environ[GENERAL_WAY] = "yes"
    config.addinivalue_line("markers", "server: starts a process, most often a server; found by itself")
    config.addinivalue_line("markers", "slow: half a second and more, though it starts no process")
    for need in NEEDS:
        config.addinivalue_line("markers", f"{need.marker}: needs {need.reason}")
    if config.getoption("fast"):
        sys.addaudithook(refuse_process)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and starts_process(item):
            item.add_marker("server")
        for need in NEEDS:
            if not need.is_here and item.get_closest_marker(need.marker):
                item.add_marker(pytest.mark.skip(reason=need.reason))
    if config.getoption("fast"):
        left_out = [item for item in items if any(map(item.get_closest_marker, LEFT_OUT))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Close with one line about what was skipped, and how to have it."""
    yield
    skipped = [report.keywords for report in terminalreporter.stats.get("skipped", ())]
    if line := skipped_line(skipped):
        terminalreporter.write_line(line)
