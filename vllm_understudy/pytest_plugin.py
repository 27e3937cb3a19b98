"""The fixture `understudy`: a server for a test (docs/testing.md).

Tests share one server, which is put back in order before and after each of them: to start another takes
longer than most tests. A test with the marker `understudy` has one of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from vllm_understudy.control import Json, Server
from vllm_understudy.running import running_server

MARKER = "understudy"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(**settings): a server of its own, with these settings")


@pytest.fixture(scope="session")
def understudy_settings() -> dict[str, Json]:
    """Settings of all servers, as `running_server` takes them; for a conftest.py to override."""
    return {}


@pytest.fixture(scope="session")
def understudy_server(understudy_settings: dict[str, Json]) -> Iterator[Server]:
    """The server that tests share, for fixtures of a wider scope than a test; `understudy` is for tests."""
    with running_server(**understudy_settings) as server:
        yield server


@pytest.fixture
def understudy(request: pytest.FixtureRequest, understudy_settings: dict[str, Json]) -> Iterator[Server]:
    """A server without faults, on which nobody has been seen yet."""
    if marker := request.node.get_closest_marker(MARKER):
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
    """A test that fails shows what its server wrote."""
    report = yield
    server = getattr(item, "funcargs", {}).get("understudy")
    if isinstance(server, Server) and report.failed and call.when == "call":
        report.sections.append(("log of understudy", server.log()[-20_000:]))
    return report
