"""Fixtures of tool calls."""

from collections.abc import Iterator

import pytest

from tests.client import Client, in_process


@pytest.fixture(scope="module")
def hermes() -> Iterator[Client]:
    with in_process("--tool-call-parser", "hermes") as client:
        yield client
