"""One tiny model for all tests that do not care which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, model_of: PreTrainedModel) -> Path:
    return Path(model_of.name_or_path)


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreTrainedModel]:
    """A Llama in transformers, which was saved in `folder`."""
    from tests.llm.tiny import make_model

    path = tmp_path_factory.mktemp("llama")
    model = make_model(path)
    model.name_or_path = str(path)
    yield model
