"""The code of the client: where it names a field, an event, or a metric. Start at `ClientCode`.

A server sees which fields a client sends, but not which ones the client reads. The code shows it: a
client does not read a field of an answer that none of its files names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from config.files import open_file
from workbench.check.findings import Place
from workbench.check.text import Text
from workbench.rehearse.junit import arguments_in

SUFFIXES = frozenset(
    (
        *(".cjs", ".cs", ".go", ".ipynb", ".java", ".js", ".jsx", ".kt", ".lua", ".mjs", ".php"),
        *(".py", ".rb", ".rs", ".scala", ".sh", ".swift", ".ts", ".tsx"),
    )
)
"""Suffixes of files of code."""
SKIPPED_FOLDERS = frozenset(
    ("__pycache__", "build", "dist", "env", "node_modules", "site-packages", "target", "vendor")
)
"""Folders with the code of others, or with outputs."""
ENVIRONMENT_MARK = "pyvenv.cfg"
"""File of a virtual environment of Python."""
MAX_FILES = 2_000
MAX_FILE_BYTES = 1 << 20
MAX_ALL_BYTES = 64 << 20


class ClientCode:
    """The texts of the client's files, by path."""

    def __init__(self, texts: Mapping[str, str], *, is_cut: bool = False) -> None:
        """`is_cut`: there is more code than was read."""
        self.texts = texts
        self.is_cut = is_cut

    def __bool__(self) -> bool:
        return bool(self.texts)

    def place(self, name: str) -> Place | None:
        """Returns the first place of a name; None if no file names it.

        A field comes before a word, which a comment may have.
        """
        place = self.place_of_field(name)
        if place is not None:
            return place
        word = _word(name)
        for file, text in self.texts.items():
            match = word.search(text)
            if match is not None:
                return Text(file, text).place(match.start())
        return None

    def place_of_field(self, name: str) -> Place | None:
        """Returns the first place where a name is an attribute, a key, or an argument."""
        field = re.compile(rf"{_reading(name)}|(?<!\w){re.escape(name)}=(?!=)")
        for file, text in self.texts.items():
            match = field.search(text)
            if match is not None:
                return Text(file, text).place(text.index(name, match.start()))
        return None

    def place_in_line(self, file: str, line: int, name: str) -> Place | None:
        """Returns the place of a name in a line of a file; None if it is not there."""
        lines = self.texts.get(file, "").splitlines()[line - 1 : line]
        if not lines:
            return None
        match = _word(name).search(lines[0])
        if match is None:
            return None
        return Place(file, line, match.start() + 1)

    def unrepaired_place(self, old: str, new: str) -> Place | None:
        """Returns the first place of `old` in a file that does not read `new`, too.

        `new` counts only as an attribute or a key: it may be a word of the language.
        """
        reads_new = re.compile(_reading(new))
        others = {file: text for file, text in self.texts.items() if reads_new.search(text) is None}
        return ClientCode(others).place(old)


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def _reading(name: str) -> str:
    """Returns a pattern of a name as an attribute or a key."""
    text = re.escape(name)
    return rf"\.{text}(?!\w)|([\"'`]){text}\1"


def read_code(paths: Iterable[str], folder: str) -> ClientCode:
    """Reads the files of code in `paths`, which are files or folders, and in `folder`."""
    texts: dict[str, str] = {}
    seen: set[str] = set()
    size_bytes = 0
    is_cut = False
    for path in _files_of([*paths, folder]):
        key = os.path.realpath(path)
        if key in seen:
            continue
        seen.add(key)
        if len(texts) >= MAX_FILES or size_bytes > MAX_ALL_BYTES:
            return ClientCode(texts, is_cut=True)
        with suppress(OSError), open_file(path, accepts_pipes=False) as file:
            content = file.read(MAX_FILE_BYTES)
            is_cut = is_cut or bool(file.read(1))
            size_bytes += len(content)
            texts[os.path.relpath(path)] = content.decode("utf-8", "replace")
    return ClientCode(texts, is_cut=is_cut)


def is_code(path: str) -> bool:
    """Returns whether a file is code, by its name."""
    return Path(path).suffix in SUFFIXES


def paths_in(words: Sequence[str]) -> list[str]:
    """Returns the files of code and the folders that a command line names."""
    paths = []
    for argument in arguments_in(words):
        path = argument.partition("::")[0]
        if os.path.isdir(path) or (is_code(path) and os.path.isfile(path)):
            paths.append(path)
    return paths


def _files_of(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isfile(path):
            if is_code(path):
                yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if _is_own(folder, name))
            for name in sorted(names):
                if is_code(name):
                    yield os.path.join(folder, name)


def _is_own(parent: str, name: str) -> bool:
    """Returns whether a folder may have the client's own code."""
    if name.startswith(".") or name in SKIPPED_FOLDERS:
        return False
    return not os.path.exists(os.path.join(parent, name, ENVIRONMENT_MARK))
