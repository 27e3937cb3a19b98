"""Fixtures and options of all rooms (README.md).

A test in a folder named `wire` may start processes.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from app.core.server.flask.application import Understudy
from tests import leftovers
from tests.client import EVERY_ROUTE, Client, in_process
from tests.dead_workers import DeadWorkers
from tests.drawn import drawn, prepare_draw, tries_all
from tests.files_with_needs import FOLDERS, SELECTIONS, WIRE, may_have_needs
from tests.needs import GROUPS, NEEDS, Need, skipped_line, unmet
from tests.parts import Parts, skip_reasons
from tests.running_server import GENERAL_WAY, RunningServer, running_server
from tests.slow_tests import Stopwatch

EVENTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"))
"""Audit events of the interpreter for a process that starts (PEP 578)."""
FONTS = "fc-list"
"""Command that matplotlib calls once on a machine, to know its fonts."""


def needs_of(item: pytest.Item) -> list[Need]:
    """Returns what a test needs, by its markers."""
    names = {mark.name for mark in item.iter_markers()}
    return [need for need in NEEDS if need.marker in names]


class ProcessGuard:
    """An audit hook that fails the test of now when it starts a process that it may not start."""

    refuses = False

    def check(self, event: str, arguments: tuple[object, ...]) -> None:
        """Checks an event of the interpreter."""
        if self.refuses and event in EVENTS and arguments[:1] != (FONTS,):
            pytest.fail(
                f"a test outside the folders named wire starts a process: {event} {arguments[:2]}"
            )


GUARD = pytest.StashKey[ProcessGuard]()
# Hypothesis limits each example to 200 ms, which a busy machine exceeds, unless the variable CI is
# set. Examples take a sixth of the time of `make test`: a quarter of their usual number, unless a
# test sets its own.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)  # the same examples every time, and the first that fails will do


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A server with its defaults:

    the embedded tokenizer, no latency. Shared, so leave it as it was.
    """
    with running_server() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def end_of_applications() -> Iterator[None]:
    """Ends the services of each application that a file has begun in this process.

    The first request begins them, and no server is there to end them: the later files of a worker would run
    beside the services of hundreds of applications.
    """
    begun: list[Understudy] = []
    begin = Understudy.begin

    def recorded(app: Understudy) -> None:
        begun.append(app)
        begin(app)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Understudy, "begin", recorded)
        yield
    for app in {id(app): app for app in begun}.values():
        app.end()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Development routes, scale-out, adapters that come and go, prompt details; in this process."""
    with in_process(*EVERY_ROUTE) as every_route:
        yield every_route


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--general-way",
        action="store_true",
        help="servers do without the fast path, as under other workers",
    )
    parser.addoption(
        "--all-examples",
        action="store_true",
        help="try all examples of hostile and foreign files, not only those that the commit draws",
    )
    parser.addoption(
        "--draw-files",
        action="store_true",
        help="run only the test files that the commit draws, unless all examples are tried",
    )
    parser.addoption(
        "--limit-time",
        action="store_true",
        help="fail tests without processes that are slow and not listed in slow_tests.py",
    )
    parser.addoption(
        "--parts",
        action="store_true",
        help="name each part that begins, and end with a sentence about what passed",
    )
    parser.addoption(
        "--demand",
        action="append",
        choices=GROUPS,
        default=[],
        help="refuse to run, instead of skipping tests, when something of this group is missing",
    )


def pytest_configure(config: pytest.Config) -> None:
    missing = unmet(config.getoption("demand"))
    if missing:
        raise pytest.UsageError(f"--demand: missing is {missing}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored. Processes that tests start would
        # inherit that, and tests could not interrupt them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # These options are for this run. Tests that start a pytest of their own would hand them on.
    os.environ.pop("PYTEST_ADDOPTS", None)
    prepare_draw(config.getoption("all_examples"))
    # A commit must not fail for an example that fails by chance, once in thousands of runs. Runs
    # with all examples look for these.
    settings.register_profile(
        "default", settings.get_profile("default"), derandomize=not tries_all()
    )
    if config.getoption("--hypothesis-profile", None) is None:
        settings.load_profile("default")  # not Hypothesis's own one where CI is set
    if config.getoption("general_way"):
        os.environ[GENERAL_WAY] = "yes"
    config.addinivalue_line(
        "markers", "wire: may start processes, most often a server; by its folder"
    )
    for need in NEEDS:
        config.addinivalue_line("markers", f"{need.marker}: needs {need.reason}")
    for group in GROUPS:
        config.addinivalue_line("markers", f"{group}: needs something of this group (needs.py)")
    guard = ProcessGuard()
    sys.addaudithook(guard.check)
    config.stash[GUARD] = guard
    config.pluginmanager.register(DeadWorkers())
    leftovers.watch()
    # A test of all examples of a file takes its time.
    if config.getoption("limit_time") and not tries_all():
        config.pluginmanager.register(Stopwatch())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without a selected test: importing them takes longer than many tests."""
    is_selective = config.option.markexpr in SELECTIONS and collection_path.match("test_*.py")
    if is_selective and not may_have_needs(collection_path):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        needs = needs_of(item)
        if needs and not may_have_needs(item.path):
            raise pytest.UsageError(
                f"{item.nodeid} has a marker that `make test-wire` does not find: "
                "write it as pytest.mark.NAME in the file"
            )
        needs_program = any(need.group != "packages" for need in needs)
        if needs_program or not FOLDERS.isdisjoint(item.path.parts):
            item.add_marker(WIRE)
        for need in needs:
            item.add_marker(need.group)
            if not need.is_here:
                item.add_marker(pytest.mark.skip(reason=need.reason))
    if config.getoption("draw_files"):
        leave_out_other_files(config, items)


def leave_out_other_files(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes the tests of the files that the commit has not drawn."""
    files = set(drawn(sorted({item.path for item in items})))
    config.hook.pytest_deselected(items=[item for item in items if item.path not in files])
    items[:] = [item for item in items if item.path in files]


def pytest_collection() -> None:
    """Looks for no garbage while tests are collected, which would take a third of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spares the collector what collecting has left: a tenth of all time.

    Applications of tests are garbage with cycles. Looking for it after each 200,000 new objects,
    instead of 700, saves another tenth, for 40 MB of memory.
    """
    gc.freeze()
    gc.set_threshold(200_000, 10, 5)
    gc.enable()


@pytest.fixture
def few_objects_to_collect() -> None:
    """Keeps the objects of earlier tests, which take seconds, out of a test's own collections."""
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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Names the parts of a run on its terminal, which a worker of xdist does not have."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("parts") and isinstance(reporter, pytest.TerminalReporter):
        session.config.pluginmanager.register(Parts(reporter))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Close with one line about what was skipped, and how to have it."""
    yield
    if terminalreporter.config.getoption("parts"):
        return
    reasons = skip_reasons(terminalreporter.stats.get("skipped", ()))
    if line := skipped_line(reasons):
        terminalreporter.write_line(line)
