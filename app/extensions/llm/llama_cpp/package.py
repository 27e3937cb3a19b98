"""The wheel that has llama.cpp, and the models for which it is used. Imports no large package."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from typing import Final

from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.model_files import find_model

PACKAGE: Final = "xllamacpp"
VERSION: Final = "2026.10.11549"
"""The only release whose structures are known; pyproject.toml pins it, too."""


def is_installed() -> bool:
    """Returns whether the wheel is installed, in whatever release."""
    return find_spec(PACKAGE) is not None


def may_compute(model: str) -> bool:
    """Returns whether a model is a .gguf file on this machine, and the wheel is installed."""
    with suppress(ModelLoadError):
        return is_installed() and find_model(model).is_file()
    return False
