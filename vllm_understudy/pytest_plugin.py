"""The fixture `understudy`: a server for a test (docs/testing.md).

Tests share one server, as a start takes longer than most tests. The server is reset before and
after each test. The marker `understudy` gives a test a separate server.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllm_understudy.control import Server
from vllm_understudy.rules import ControlError, Json
from vllm_understudy.running import running_server, unchecked_server

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
    """Settings of all servers, as for `running_server`. A conftest.py may override this fixture.

    A relative path is relative to the working folder of pytest.
    """
    return {}


@pytest.fixture(scope="session")
def understudy_server(understudy_settings: dict[str, Json]) -> Iterator[Server]:
    """The shared server, for fixtures of a wider scope than one test. Tests use `understudy`."""
    with _sentences(), running_server(**understudy_settings) as server:
        yield server


@pytest.fixture
def understudy(
    request: pytest.FixtureRequest, understudy_settings: dict[str, Json]
) -> Iterator[Server]:
    """A server without faults and without records of clients.

    A relative path in `script` of the marker is relative to the folder of the test's file.
    """
    marker = request.node.get_closest_marker(MARKER)
    if marker:
        settings = {**understudy_settings, **marker.kwargs}
        if marker.kwargs.get("script"):
            settings["script"] = _resolve_scripts(marker.kwargs["script"], request.path.parent)
        # The check of the requests is in `pytest_runtest_call`: a second one at the end of the
        # server would report an error in addition to the failure.
        with _sentences(), unchecked_server(*marker.args, **settings) as server:
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
            _warn_of_skipped_calls(server)


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


@contextmanager
def _sentences() -> Iterator[None]:
    """Reports a server that does not start by its message alone."""
    try:
        yield
    except RuntimeError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _resolve_scripts(scripts: Json, folder: Path) -> Json:
    """Returns the setting `script` with paths relative to `folder`.

    Each item is a path, or `MODEL=PATH`. Values that are not texts are left to the server's check.
    """
    if isinstance(scripts, list):
        return [_resolve_scripts(item, folder) for item in scripts]
    if not isinstance(scripts, str):
        return scripts
    model, equals, path = scripts.rpartition("=")
    file = folder / path
    if not file.is_file():
        pytest.fail(
            f"The script {path!r} of the marker {MARKER} is not a file in {folder}. A relative "
            "path is relative to the folder of the test's file.",
            pytrace=False,
        )
    return f"{model}{equals}{file}"


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


def _warn_of_skipped_calls(server: Server) -> None:
    """Warns of rules whose tool calls a request did not offer, though another rule answered."""
    try:
        lines = server.skipped_calls()
    except ControlError:  # a server that has ended
        return
    for line in lines:
        warnings.warn(line, stacklevel=1)


def _servers_of(item: pytest.Item) -> list[Server]:
    """Returns the servers among the fixtures of a test, each once."""
    servers: list[Server] = []
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Server) and value not in servers:
            servers.append(value)
    return servers
