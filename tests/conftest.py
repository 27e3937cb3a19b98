"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running_server import RunningServer, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A server with its defaults: the embedded tokenizer, no latency. Shared, so leave it as it was."""
    with running_server() as running:
        yield running
