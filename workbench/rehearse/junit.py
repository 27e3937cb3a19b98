"""JUnit files: reads the results of tests, and writes breaks as failures of tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from config.files import open_file

MAX_BYTES = 64 << 20
SUFFIX = ".xml"
Result = Literal["passed", "failed", "skipped"]
FAILURES = frozenset(("failure", "error"))


class FileState(NamedTuple):
    """Fields of a file that change when a command writes it."""

    inode: int
    size_bytes: int
    changed_ns: int
    """Time of the last change of the inode, which no program can set."""


class ResultsReader:
    """Reads test cases without a tree; a document type, which may expand without end, ends it."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self._name = ""
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.StartDoctypeDeclHandler = self._refuse

    def read(self, content: bytes) -> None:
        """Reads a whole document.

        Raises:
            ValueError: The content is not XML, or has a document type.
        """
        try:
            self._parser.Parse(content, True)
        except (expat.ExpatError, LookupError) as error:  # of the document, or of its encoding
            raise ValueError(f"not XML: {error}") from None

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "testcase":
            names = (attributes.get("classname", ""), attributes.get("name", ""))
            self._name = ".".join(name for name in names if name)
            self.results.setdefault(self._name, "passed")
        elif tag in FAILURES and self._name:
            self.results[self._name] = "failed"
        elif tag == "skipped" and self._name:
            self.results[self._name] = "skipped"

    def _refuse(self, *_: object) -> None:
        raise ValueError("a document type is not accepted")


def result_files(words: Sequence[str]) -> list[str]:
    """Returns the XML files that a command line names, as in `--junitxml=results.xml`."""
    return [path for path in arguments_in(words) if path.endswith(SUFFIX)]


def arguments_in(words: Sequence[str]) -> list[str]:
    """Returns the arguments of a command, and the values of its options.

    An argument with blanks can be a command, as behind `bash -c`.
    """
    parts = [part for word in words[1:] for part in word.split()]
    return [part.strip("'\";").rpartition("=")[2] for part in parts]


def file_states(paths: Sequence[str]) -> dict[str, FileState]:
    """Returns the states of the files that are there."""
    states: dict[str, FileState] = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            states[path] = FileState(status.st_ino, status.st_size, status.st_ctime_ns)
    return states


def read_results(paths: Sequence[str], before: Mapping[str, FileState]) -> dict[str, Result]:
    """Returns the results of the tests in files that were written since `before`.

    A file that is not there or not XML has none.
    """
    results: dict[str, Result] = {}
    for path, state in file_states(paths).items():
        if state == before.get(path):
            continue
        reader = ResultsReader()
        try:
            if os.path.getsize(path) > MAX_BYTES:
                continue
            with open_file(path, accepts_pipes=False) as file:
                reader.read(file.read(MAX_BYTES))
        except (OSError, ValueError):
            continue
        results |= reader.results
    return results


def written(suite: str, failures: Sequence[tuple[str, str]], passed: Sequence[str]) -> str:
    """Returns a JUnit document; `failures` are names of tests with texts."""
    root = ElementTree.Element(
        "testsuite",
        name=suite,
        tests=str(len(failures) + len(passed)),
        failures=str(len(failures)),
    )
    for name, text in failures:
        case = ElementTree.SubElement(root, "testcase", classname=suite, name=name)
        failure = ElementTree.SubElement(case, "failure", message=text.partition("\n")[0])
        failure.text = text
    for name in passed:
        ElementTree.SubElement(root, "testcase", classname=suite, name=name)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
