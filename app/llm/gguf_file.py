"""The layout of a GGUF file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

The `gguf` package reads such files, too, but takes seconds: it makes several objects for each token.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.llm.errors import ModelLoadError

VERSIONS: Final = (2, 3)
NUMBERS: Final[Mapping[int, str]] = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Kinds of values in the head -> format characters of `struct`."""
TEXT, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`kind` is a key of `ENCODINGS` if supported; `start` is the offset from the start of the file."""

    shape: tuple[int, ...]
    kind: int
    start: int


class GGUFFile:
    """The head of a file, and its tensors, mapped into memory. Raises ModelLoadError for a cut file."""

    def __init__(self, path: Path) -> None:
        self.path, self._place = path, 4
        self._fields: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as file:
                # Copy on write, because torch wants writable memory; no page is ever written.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._read_head()
        except (OSError, ValueError, struct.error) as error:
            raise ModelLoadError(f"{path} is cut off or no GGUF file: {error}.") from error

    def field(self, name: str) -> object:
        """Returns a field of the head; None if missing."""
        return self._fields.get(name)

    def texts(self, name: str) -> list[str]:
        """Returns a list of texts; empty if missing."""
        value = self._fields.get(name)
        return value if isinstance(value, list) else []

    def content(self, name: str, size: int) -> memoryview:
        start = self.tensors[name].start
        if start + size > len(self._data):
            raise ModelLoadError(f"{self.path} is cut off: it ends before the tensor {name} does.")
        return memoryview(self._data)[start : start + size]

    def _read_head(self) -> None:
        """Reads all before the tensors. Raises ValueError or struct.error for a wrong head."""
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := self._integer("I")) not in VERSIONS:
            raise ValueError(f"its version is {version}")
        num_tensors, num_fields = self._integer("Q"), self._integer("Q")
        for _ in range(num_fields):
            name = self._text()
            self._fields[name] = self._value(self._integer("I"))
        infos = []
        for _ in range(num_tensors):
            name, shape = self._text(), [self._integer("Q") for _ in range(self._integer("I"))]
            if not shape or min(shape) < 1:
                raise ValueError(f"it has a tensor of the shape {shape}")
            infos.append((name, tuple(shape[::-1]), self._integer("I"), self._integer("Q")))
        align = self._fields.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise ValueError(f"its alignment is {align}")
        first = -(-self._place // align) * align
        self.tensors = {name: TensorInfo(shape, kind, first + start) for name, shape, kind, start in infos}

    def _value(self, kind: int) -> object:
        if kind == TEXT:
            return self._text()
        count, is_list = 1, kind == ARRAY
        if is_list:
            kind, count = self._integer("I"), self._integer("Q")
        if kind == TEXT:
            return self._texts(count)
        if kind not in NUMBERS:
            raise ValueError(f"it has a value of the kind {kind}")
        numbers = self._unpack(NUMBERS[kind], count)
        return list(numbers) if is_list else numbers[0]

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        """Reads consecutive texts in one loop, as a vocabulary has a hundred thousand."""
        data, place, size_of = self._data, self._place, struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            (size,) = size_of(data, place)
            place += 8 + size
            texts.append(str(data[place - size : place], "utf-8"))
        if place > len(data):
            raise ValueError("a text goes on behind its end")
        self._place = place
        return texts

    def _integer(self, code: str) -> int:
        return int(self._unpack(code, 1)[0])

    def _unpack(self, code: str, count: int) -> tuple[float, ...]:
        form = struct.Struct(f"<{count}{code}")
        values = form.unpack_from(self._data, self._place)
        self._place += form.size
        return values
