"""Fixtures and options of all rooms (README.md). A test in a folder named `wire` may start processes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import Phase, settings

from tests.needs import NEEDS, skipped_line
from tests.processes import WIRE, ProcessGuard, is_wire
from tests.running_server import GENERAL_WAY, RunningServer, running_server

GUARD = pytest.StashKey[ProcessGuard]()
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
        "--general-way", action="store_true", help="servers do without the fast path, as under other workers"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("general_way"):
        os.environ[GENERAL_WAY] = "yes"
    config.addinivalue_line("markers", "wire: may start processes, most often a server; by its folder")
    for need in NEEDS:
        config.addinivalue_line("markers", f"{need.marker}: needs {need.reason}")
    guard = ProcessGuard()
    sys.addaudithook(guard)
    config.stash[GUARD] = guard


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_wire(item):
            item.add_marker(WIRE)
        for need in NEEDS:
            if not need.is_here and item.get_closest_marker(need.marker):
                item.add_marker(pytest.mark.skip(reason=need.reason))


def pytest_collection_finish() -> None:
    """Spares the collector what collecting has left: a tenth of all time."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Lets tests of the wire start processes, and no others."""
    guard = item.config.stash[GUARD]
    guard.refuses = item.get_closest_marker(WIRE) is None
    try:
        return (yield)
    finally:
        guard.refuses = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Close with one line about what was skipped, and how to have it."""
    yield
    skipped = [report.keywords for report in terminalreporter.stats.get("skipped", ())]
    if line := skipped_line(skipped):
        terminalreporter.write_line(line)
