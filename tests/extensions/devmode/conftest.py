"""Fixtures of the routes for development."""

from collections.abc import Iterator

import pytest

from scripts.surface import is_flag
from tests.client import Client, in_process

FLAGS = ("--vllm-version=0.33", "--server-dev-mode", "--enable-scale-out")


@pytest.fixture(scope="module")
def dev_client() -> Iterator[Client]:
    with in_process(*filter(is_flag, FLAGS)) as client:
        yield client


@pytest.fixture(params=["abort", "wait"])
def paused(dev_client: Client, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of a server in a pause that rejects requests."""
    assert dev_client.post(f"/pause?mode={request.param}").json() == {"status": "paused"}
    yield dev_client
    dev_client.post("/resume")
