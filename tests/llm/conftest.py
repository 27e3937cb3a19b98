"""One tiny model for all tests that do not care which; and what stands for these tests where torch is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

import pytest

from app.tokenization.loading import EMBEDDED
from tests.needs import NEEDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tests.llm.process import EngineProcess, Worker

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
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen3 that speaks with the embedded tokenizer."""
    from tests.llm.tiny import Shape, make_model

    path = tmp_path_factory.mktemp("qwen3")
    vocabulary = json.loads((EMBEDDED / "tokenizer.json").read_text())["model"]["vocab"]
    make_model(path, Shape("qwen3"), vocabulary=len(vocabulary) + 64)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        copyfile(EMBEDDED / name, path / name)
    return str(path)


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A Llama in transformers, which was saved in `folder`."""
    from tests.llm.tiny import make_model

    path = tmp_path_factory.mktemp("llama")
    model = make_model(path)
    model.name_or_path = str(path)
    return model


@pytest.fixture
def other(engine: EngineProcess) -> Iterator[Worker]:
    """A second worker of the process that a file's `engine` is."""
    from tests.llm.process import Worker

    made = Worker(engine.options.endpoint)
    made.greet()
    yield made
    made.close()
