"""Tokenizers in GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from app.core.text.files import TokenizerFolder

SUFFIX = ".gguf"


class GgufFiles(Extension):
    """Reads the vocabulary in the head of a model's file."""

    name = "gguf"

    @classmethod
    def read_tokenizer(cls, path: Path) -> tuple[Backend, TokenizerFolder] | None:
        """Returns the tokenizer in a file, with its special tokens and templates.

        Raises:
            TokenizerLoadError: the file has none, or one of another kind.
        """
        if path.suffix != SUFFIX:
            return None
        from app.extensions.gguf.vocabulary import read_tokenizer

        return read_tokenizer(path)
