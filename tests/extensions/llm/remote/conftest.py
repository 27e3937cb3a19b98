"""A server for all tests that leave it, and its engine, as they were."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.llm.remote.served import SENTENCE, Peer, new_peer, served
from tests.running_server import RunningServer


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collects the tests of this folder also without torch, unlike those of the folder above."""
    module: pytest.Module = pytest.Module.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="package")
def folder_of_all(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return new_peer(tmp_path_factory.mktemp("peer"))


@pytest.fixture(scope="package")
def remote(folder_of_all: Peer) -> Iterator[RunningServer]:
    with served(folder_of_all, enable_prompt_tokens_details="true") as server:
        yield server


@pytest.fixture
def peer(folder_of_all: Peer) -> Iterator[Peer]:
    """That server's engine, which says `SENTENCE` before each test."""
    folder_of_all.says(SENTENCE)
    yield folder_of_all
    folder_of_all.fails(None)
