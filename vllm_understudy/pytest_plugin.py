"""The fixture `understudy`: a server for a test (docs/testing.md).

Tests share one server, as a start takes longer than most tests. The server is reset before and
after each test. The marker `understudy` gives a test a separate server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from vllm_understudy.control import Server
from vllm_understudy.rules import ControlError, Json
from vllm_understudy.running import running_server

MARKER = "understudy"
MAX_LOG_LENGTH = 20_000
"""Most characters of a log in the report of a failed test."""


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(**settings): a separate server with these settings"
    )


@pytest.fixture(scope="session")
def understudy_settings() -> dict[str, Json]:
    """Settings of all servers, as for `running_server`. A conftest.py may override this fixture."""
    return {}


@pytest.fixture(scope="session")
def understudy_server(understudy_settings: dict[str, Json]) -> Iterator[Server]:
    """The shared server, for fixtures of a wider scope than one test. Tests use `understudy`."""
    with running_server(**understudy_settings) as server:
        yield server


@pytest.fixture
def understudy(
    request: pytest.FixtureRequest, understudy_settings: dict[str, Json]
) -> Iterator[Server]:
    """A server without faults and without records of clients."""
    marker = request.node.get_closest_marker(MARKER)
    if marker:
        with running_server(*marker.args, **{**understudy_settings, **marker.kwargs}) as server:
            yield server
        return
    server = request.getfixturevalue("understudy_server")
    server.reset()
    yield server
    server.reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that would pass although no rule has answered one of its requests."""
    yield
    for server in _servers_of(item):
        if server.has_replies or server.is_strict:
            _check_matched(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the seed, the requests and the new lines of the log to the report of a failed test."""
    report = yield
    if not report.failed or call.when != "call":
        return report
    for server in _servers_of(item):
        report.sections.append(("requests to understudy", server.journal_report()))
        log = server.new_log()[-MAX_LOG_LENGTH:]
        if log.strip():
            report.sections.append(("log of understudy", log))
    return report


def _check_matched(server: Server) -> None:
    """Fails the test with one line; its report has the journal in a section."""
    message = ""
    try:
        server.assert_matched()
    except AssertionError as error:
        message = str(error).partition("\n")[0]
    except ControlError:  # a server without a journal, or one that has ended
        return
    if message:
        pytest.fail(message, pytrace=False)


def _servers_of(item: pytest.Item) -> list[Server]:
    """Returns the servers among the fixtures of a test, each once."""
    servers: list[Server] = []
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Server) and value not in servers:
            servers.append(value)
    return servers
