"""One tiny model for all tests that do not care which; and what stands for these tests where torch
is not.
"""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

import pytest

from app.core.text.huggingface import EMBEDDED
from tests.not_imported import skipped_without

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytest_pycollect_makemodule = skipped_without("engine")


@pytest.fixture(scope="session")
def folder(model_of: PreTrainedModel) -> Path:
    return Path(model_of.name_or_path)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen3 that speaks with the embedded tokenizer."""
    from tests.extensions.llm.tiny import Shape, make_model

    path = tmp_path_factory.mktemp("qwen3")
    vocabulary = json.loads((EMBEDDED / "tokenizer.json").read_text())["model"]["vocab"]
    make_model(path, Shape("qwen3"), vocabulary=len(vocabulary) + 64)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        copyfile(EMBEDDED / name, path / name)
    return str(path)


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A Llama in transformers, which was saved in `folder`."""
    from tests.extensions.llm.tiny import make_model

    path = tmp_path_factory.mktemp("llama")
    model = make_model(path)
    model.name_or_path = str(path)
    return model
