"""One tiny model for all tests that do not care which; and what stands for these tests where torch is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.needs import NEEDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

[ENGINE] = [need for need in NEEDS if need.marker == "engine"]


class NotImported(pytest.File):
    """A module that cannot be imported here: one test, which is skipped."""

    def collect(self) -> Iterator[pytest.Item]:
        yield NotRun.from_parent(self, name="all")


class NotRun(pytest.Item):
    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self.add_marker("engine")

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name

    def runtest(self) -> None:
        raise AssertionError("it needs what is not here, so it is skipped")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return None if ENGINE.is_here else NotImported.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def folder(model_of: PreTrainedModel) -> Path:
    """The saved model."""
    return Path(model_of.name_or_path)


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A Llama in transformers, which was saved in `folder`."""
    from tests.llm.tiny import make_model

    path = tmp_path_factory.mktemp("llama")
    model = make_model(path)
    model.name_or_path = str(path)
    return model
