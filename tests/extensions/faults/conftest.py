"""A server for faults that clients ask for; every test begins with a clean verdict."""

from collections.abc import Iterator

import pytest
import requests

from scripts.surface import is_flag
from tests.hostile.stressed_server import assert_unharmed, stressed_server
from tests.running_server import RunningServer


@pytest.fixture(scope="session")
def one_server() -> Iterator[RunningServer]:
    with stressed_server(*filter(is_flag, ("--enable-scale-out",))) as running:
        yield running


@pytest.fixture
def faulty(one_server: RunningServer) -> Iterator[RunningServer]:
    """No fault harms it: at the end nothing runs, and its log has no error."""
    requests.delete(one_server.url + "/admin/verdict", timeout=20).raise_for_status()
    yield one_server
    assert_unharmed(one_server)
