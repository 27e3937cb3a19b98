"""One server for all tests that leave it as it was, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from scripts.surface import is_flag
from tests.not_imported import skipped_without
from tests.running_server import RunningServer, running_server

if TYPE_CHECKING:
    from tests.extensions.grpc.client import Engine

pytest_pycollect_makemodule = skipped_without("grpc")


@pytest.fixture(scope="session")
def served() -> Iterator[RunningServer]:
    """A server that speaks gRPC on its own port. Leave it as it was."""
    flags = filter(is_flag, ("--grpc", "--enable-scale-out", "--max-logprobs=20"))
    with running_server(*flags) as running:
        yield running


@pytest.fixture(scope="session")
def engine(served: RunningServer) -> Iterator[Engine]:
    from tests.extensions.grpc.client import connected

    with connected(served.port) as connected_engine:
        yield connected_engine


@pytest.fixture(scope="session")
def impatient() -> Iterator[tuple[RunningServer, Engine]]:
    """A server with one place that waits a second for clients to read, and its client."""
    from tests.extensions.grpc.client import connected

    flags = ["--client-timeout", "1s", "--max-num-seqs", "1"]
    with running_server("--grpc", *flags) as running, connected(running.port) as connected_engine:
        yield running, connected_engine
