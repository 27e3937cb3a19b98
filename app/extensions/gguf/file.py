"""Reads the head of a GGUF file, and maps its tensors.

The layout is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf`
package reads such files, too, but takes seconds: it creates several objects for each token.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.core.text.base import TokenizerLoadError
from config.files import open_file

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
NUMBER_FORMATS: Final[Mapping[int, str]] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Kinds of values in the head, with their format characters of `struct`."""
TEXT: Final = 8
ARRAY: Final = 9
DEFAULT_ALIGNMENT: Final = 32
LENGTH_FORMAT: Final = "Q"
"""The format of the length of a text."""
LENGTH_BYTES: Final = 8
DIMENSION_BYTES: Final = 8
FIELD_BYTES: Final = 13
"""Minimum size of a field: an empty name, a kind, and a value of one byte."""
TENSOR_BYTES: Final = 32
"""Minimum size of a tensor's description: an empty name, one dimension, a kind, and an offset."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Position and encoding of a tensor."""

    shape: tuple[int, ...]
    kind: int
    """A key of `gguf_weights.supported_encodings`, if supported."""
    start: int
    """Offset from the start of the file."""


class GGUFFile:
    """The head of a file, and its tensors, mapped into memory.

    Raises:
        TokenizerLoadError: The file is cut off, or not a GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._position = len(MAGIC)
        try:
            with open_file(path, accepts_pipes=False) as file:
                # Copy on write, because torch wants writable memory; no page is ever written.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._read_head()
        except (OSError, OverflowError, ValueError, struct.error) as error:
            raise TokenizerLoadError(
                f"{path} is truncated or is not a GGUF file: {error}."
            ) from error

    def _read_head(self) -> None:
        """Reads all before the tensors.

        Raises ValueError, OverflowError or struct.error for an invalid head.
        """
        if self._data[: len(MAGIC)] != MAGIC:
            raise ValueError("the file does not start with GGUF")
        version = self._read_integer("I")
        if version not in VERSIONS:
            raise ValueError(f"GGUF version {version} is not supported")
        tensor_count = self._read_count("Q", "tensors", TENSOR_BYTES)
        field_count = self._read_count("Q", "fields", FIELD_BYTES)
        for _ in range(field_count):
            name = self._read_text()
            self.fields[name] = self._read_value()
        infos = {}
        for _ in range(tensor_count):
            name = self._read_text()
            infos[name] = self._read_tensor_info()
        alignment = self.fields.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"the alignment must be a positive integer, not {alignment}")
        data_start = -(-self._position // alignment) * alignment
        for name, info in infos.items():
            self.tensors[name] = TensorInfo(info.shape, info.kind, data_start + info.start)

    def _read_tensor_info(self) -> TensorInfo:
        """Returns a tensor's position, counted from the end of the head."""
        dimensions = self._read_count("I", "dimensions", DIMENSION_BYTES)
        shape = [self._read_integer("Q") for _ in range(dimensions)]
        if not shape or min(shape) < 1:
            raise ValueError(f"a tensor has the invalid shape {shape}")
        kind = self._read_integer("I")
        start = self._read_integer("Q")
        return TensorInfo(tuple(reversed(shape)), kind, start)

    def _read_value(self) -> object:
        kind = self._read_integer("I")
        if kind == ARRAY:
            item_kind = self._read_integer("I")
            item_bytes = struct.calcsize(NUMBER_FORMATS.get(item_kind, LENGTH_FORMAT))
            return self._read_values(item_kind, self._read_count("Q", "members", item_bytes))
        return self._read_values(kind, 1)[0]

    def _read_values(self, kind: int, count: int) -> Sequence[object]:
        if kind == TEXT:
            return self._read_texts(count)
        if kind not in NUMBER_FORMATS:
            raise ValueError(f"a value has the unknown type {kind}")
        return list(self._unpack(NUMBER_FORMATS[kind], count))

    def _read_text(self) -> str:
        return self._read_texts(1)[0]

    def _read_texts(self, count: int) -> list[str]:
        """Reads consecutive texts in one loop, as a vocabulary has a hundred thousand."""
        data = self._data
        position = self._position
        end = len(data)
        unpack_size = struct.Struct("<" + LENGTH_FORMAT).unpack_from
        texts = []
        for _ in range(count):
            (size,) = unpack_size(data, position)
            position += LENGTH_BYTES + size
            if position > end:
                raise ValueError(f"a text of {size:,} bytes is longer than the file")
            try:
                texts.append(str(data[position - size : position], "utf-8"))
            except UnicodeDecodeError:
                raise ValueError("a text is not UTF-8") from None
        self._position = position
        return texts

    def _read_count(self, code: str, name: str, member_bytes: int) -> int:
        """Returns a count. Raises ValueError for more members than the rest of the file holds."""
        count = self._read_integer(code)
        if count * member_bytes > len(self._data) - self._position:
            raise ValueError(f"{count:,} {name} are more than the file holds")
        return count

    def _read_integer(self, code: str) -> int:
        return int(self._unpack(code, 1)[0])

    def _unpack(self, code: str, count: int) -> tuple[float, ...]:
        layout = struct.Struct(f"<{count}{code}")
        values = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return values
