"""The fixture `understudy`: a server for a test (docs/testing.md).

Tests share one server, as a start takes longer than most tests. The server is reset before and
after each test. The marker `understudy` gives a test a separate server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from vllm_understudy.control import Json, Server
from vllm_understudy.running import running_server

MARKER = "understudy"


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
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the server's log to the report of a failed test."""
    report = yield
    server = getattr(item, "funcargs", {}).get("understudy")
    if isinstance(server, Server) and report.failed and call.when == "call":
        report.sections.append(("log of understudy", server.log()[-20_000:]))
    return report
