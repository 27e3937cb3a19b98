"""Reads a file of fixtures, and finds out its format: start with `FixtureFile`.

The notation of a file follows from its content, because tools give their files any suffix.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import yaml

from app.extensions.recording.exchange import HEADER_START
from config.declaration import COMMAND
from config.files import read_whole
from config.lines import check_json
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from config.yaml_file import LimitedLoader, decode_yaml, oversize
from workbench.imports.fixture_format import Format, Notation, Record, Records
from workbench.imports.formats import FORMATS, list_of_formats
from workbench.imports.imported_script import ImportFormatError, Json

JSON_SUFFIXES = (".json", ".har")
YAML_SUFFIXES = (".yaml", ".yml")
MAX_FILE_BYTES = 32 << 20
"""Largest file: 16 times the largest script that a server reads."""
JSON_START = re.compile(r"\s*(?:\{|\[\s*[\[{\"\]])")
"""Start of JSON, but not of a log whose lines begin with `[2026-01-31 12:00]`."""
KEYS = "|".join(key for fmt in FORMATS.values() for key in fmt.keys)
JSON_KEY = re.compile(rf'"(?:{KEYS})"\s*:')
"""A key of a known format. A damaged file of another format is of no known format."""
YAML_KEY = re.compile(rf"(?m)^(?:- | {{0,2}})\{{?[\"']?(?:{KEYS})[\"']?\s*:")
HEAD_CHARACTERS = 1000
"""Characters of a file that contain such a key, if the whole file has a known format."""
LINE_PREFIX = re.compile(r"[^\"{}]{0,100}(?<=\s)(?=\{\")")
"""Time or name of a container that a collector of logs writes before each line."""
PYTHON_TEXTS = (
    "unicode",
    "str",
    "object/apply:multidict._multidict.istr",
    "object/apply:multidict._multidict_py.istr",
)
"""Tags of texts, without their prefix. No other object of Python is read."""


class FixtureLoader(LimitedLoader):
    """A loader that also reads bytes as Ruby writes them, and texts as vcrpy writes some.

    Ruby has `!binary` instead of `!!binary`. vcrpy writes the names of aiohttp's headers, and texts
    of Python 2, as objects of Python.
    """

    def construct_ruby_bytes(self, node: yaml.ScalarNode) -> bytes:
        """Returns bytes that are written in base64."""
        return self.construct_yaml_binary(node)

    def construct_python_text(self, node: yaml.ScalarNode | yaml.SequenceNode) -> object:
        """Returns a text, or the only argument of the call that makes it."""
        if isinstance(node, yaml.SequenceNode):
            [argument] = self.construct_sequence(node)
            return argument
        return self.construct_scalar(node)


FixtureLoader.add_constructor("!binary", FixtureLoader.construct_ruby_bytes)
for _name in PYTHON_TEXTS:
    FixtureLoader.add_constructor(
        f"tag:yaml.org,2002:python/{_name}", FixtureLoader.construct_python_text
    )


class FixtureFile:
    """A file of fixtures. Each property is computed once, when a format asks for it."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            ImportFormatError: it cannot be read, or is not text.
        """
        self._path = path
        self._flaw = ""
        """Reason why a file that looks like JSON, or has a key of a format, is no document."""
        try:
            content = read_whole(path, MAX_FILE_BYTES)
        except OSError as error:
            raise _unreadable(error) from None
        if content.startswith(HEADER_START):
            raise ImportFormatError(
                f"is a recording; convert it with {COMMAND} script from-recording"
            )
        try:
            self._text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _unknown("is not encoded in UTF-8") from None
        self._is_json = JSON_START.match(self._text) is not None or path.suffix in JSON_SUFFIXES

    def format_and_content(self, name: str | None) -> tuple[Format, object]:
        """Returns the format of this name, or the first that the file has, and the content for it.

        Raises:
            ImportFormatError: the file has no known format, or is damaged.
        """
        if name is not None:
            return FORMATS[name], self._content(FORMATS[name].notation)
        for fmt in FORMATS.values():
            if fmt.notation is Notation.DOCUMENT and not self._is_document:
                continue
            content = self._content(fmt.notation)
            if fmt.is_format(content):
                return fmt, content
        head = self._text[:HEAD_CHARACTERS]
        is_damaged = JSON_KEY.search(head) if self._is_json else YAML_KEY.search(head)
        if is_damaged and self._flaw and (self._is_json or self._path.suffix in YAML_SUFFIXES):
            raise ImportFormatError(self._flaw)
        raise _unknown(self._flaw if self._is_json else "")

    def _content(self, notation: Notation) -> object:
        if notation is Notation.TEXT:
            return self._text
        if notation is Notation.RECORDS:
            return self._records
        return self._document

    @cached_property
    def _is_document(self) -> bool:
        """True if the file is a document. Sets the flaw of a damaged one."""
        if not (self._is_json or YAML_KEY.search(self._text)):
            return False  # the parser of YAML would take seconds to find this out
        try:
            _ = self._document
        except ImportFormatError as error:
            if not (self._is_json and self._records.found):
                self._flaw = str(error)
            return False
        return True

    @cached_property
    def _document(self) -> object:
        """The JSON or YAML of the file.

        Raises:
            ImportFormatError: it is neither, or has too many values.
        """
        try:
            document = self._decoded()
        except UntrustedDataError as error:
            first_line = str(error).partition("\n")[0]
            raise ImportFormatError(f"is not valid: {first_line}") from None
        flaw = oversize(document)
        if flaw:
            raise ImportFormatError(flaw)
        return document

    def _decoded(self) -> object:
        """Returns the JSON or YAML of the file.

        JSON is tried first, since it takes a fiftieth of the time.

        Raises:
            UntrustedDataError: it is neither.
        """
        if self._is_json:
            try:
                return self._json
            except UntrustedDataError:
                if self._path.suffix not in YAML_SUFFIXES:
                    raise
        return decode_yaml(self._text, FixtureLoader)

    @cached_property
    def _json(self) -> object:
        """The JSON of the file.

        Raises:
            ImportFormatError: it would take too much memory.
            UntrustedDataError: it is not JSON.
        """
        try:
            check_json(self._text.encode(), str(self._path))
        except OSError as error:
            raise _unreadable(error) from None
        value: object = decode_untrusted(self._text, decoder=python_json)
        return value

    @cached_property
    def _records(self) -> Records:
        """The objects of the file: of its lines, or of the list in it."""
        try:
            document = self._json
        except UntrustedDataError:
            return _records_of(self._text)
        if isinstance(document, dict):
            document = [document]
        records = Records("item")
        for number, item in enumerate(document if isinstance(document, list) else (), 1):
            _add_record(records, number, item)
        return records


def _records_of(text: str) -> Records:
    """Returns the objects in the lines of a text.

    An object has a line to itself, or begins and ends with a line that is one brace.
    """
    records = Records("line")
    for number, part in _parts_of(text.split("\n")):
        if "{" not in part:  # most lines of a text, which may have millions
            records.other_lines += bool(part and not part.isspace())
            continue
        prefix = LINE_PREFIX.match(part)
        if prefix is not None:
            part = part[prefix.end() :]
        if not part.startswith("{"):
            records.other_lines += bool(part.strip())
            continue
        try:
            _add_record(records, number, decode_untrusted(part, decoder=python_json))
        except UntrustedDataError:
            records.add_damaged(number)
    return records


def _parts_of(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields each line with its number; the lines of an indented object together."""
    first_number = 0
    parts: list[str] = []
    for number, line in enumerate(lines, 1):
        if parts:
            parts.append(line)
            if line.rstrip() in ("}", "},"):
                yield first_number, "\n".join(parts).rstrip().rstrip(",")
                parts = []
        elif line.rstrip() == "{":
            first_number = number
            parts = [line]
        else:
            yield number, line
    if parts:
        yield first_number, "\n".join(parts)


def _add_record(records: Records, number: int, value: object) -> None:
    """Adds an object, unless it has too many values."""
    if not isinstance(value, dict) or oversize(value):
        records.add_damaged(number)
        return
    fields: Json = value
    records.found.append(Record(number, fields))


def _unreadable(error: OSError) -> ImportFormatError:
    return ImportFormatError(f"cannot be read: {error.strerror or error}")


def _unknown(reason: str = "") -> ImportFormatError:
    """Returns the error for a file that has no format of the table."""
    if reason:
        reason = f" (it {reason})"
    return ImportFormatError(f"not a format that I know{reason}; I read {list_of_formats()}")
