"""One server for the checks of this folder, started like the recorded vLLM."""

from collections.abc import Iterator

import pytest

from tests.conformance.recording import ENVIRONMENT, FLAGS, FLAGS_WITH_EVENTS
from tests.running_server import RunningServer, running_server


@pytest.fixture(scope="session")
def vllm() -> Iterator[RunningServer]:
    """Serves `tiny` with a context of 2048 tokens, takes images, and tells request ids and cached
    tokens.
    """
    with running_server(
        *FLAGS, "--enable-request-id-headers", "--multimodal", env=ENVIRONMENT
    ) as server:
        yield server


@pytest.fixture(scope="module")
def publishing() -> Iterator[RunningServer]:
    """As `vllm`, and publishes the events of its KV cache."""
    with running_server(
        *FLAGS_WITH_EVENTS, "--enable-request-id-headers", "--multimodal", env=ENVIRONMENT
    ) as server:
        yield server


@pytest.fixture(scope="session")
def thinking() -> Iterator[RunningServer]:
    """As the recorded server, but the model thinks."""
    with running_server(*FLAGS, "--reasoning-parser=qwen3", env=ENVIRONMENT) as server:
        yield server
