"""Real servers with a context of 64 tokens and vectors of 16 numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pooling.calls import FLAGS
from tests.running_server import RunningServer, running_server


@pytest.fixture(scope="session")
def every() -> Iterator[RunningServer]:
    """Serves all pooling routes."""
    with running_server("--task=pooling", *FLAGS, "--pod-name=pod-1") as server:
        yield server


@pytest.fixture(scope="session")
def cross() -> Iterator[RunningServer]:
    """A cross-encoder, which reads pairs of texts as one prompt."""
    with running_server("--task=score", *FLAGS) as server:
        yield server
