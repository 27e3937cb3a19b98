"""GGUF files as models: their heads, and their tensors, mapped into memory."""

from pathlib import Path

from app.core.text.base import TokenizerLoadError
from app.extensions.gguf import file as gguf_file
from app.extensions.llm.errors import ModelLoadError


class GGUFFile(gguf_file.GGUFFile):
    """The head of a file, and its tensors.

    Raises:
        ModelLoadError: The file is cut off, or not a GGUF file.
    """

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path)
        except TokenizerLoadError as error:
            raise ModelLoadError(str(error)) from error

    def content(self, name: str, size: int) -> memoryview:
        """Returns the `size` bytes of a tensor. Raises ModelLoadError if the file is cut off."""
        start = self.tensors[name].start
        if start + size > len(self._data):
            raise ModelLoadError(f"{self.path} is truncated: it ends within the tensor {name}.")
        return memoryview(self._data)[start : start + size]
