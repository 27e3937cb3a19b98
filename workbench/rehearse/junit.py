"""JUnit files: reads the results of tests, and writes breaks as failures of tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from msgspec import Struct

from config.files import open_file

MAX_BYTES = 64 << 20
MAX_TESTS = 100_000
"""Most tests of a file."""
MAX_TEXT_LENGTH = 1 << 16
"""Most characters that are read of the text of a failure."""
MAX_REASON_LENGTH = 8_192
"""Characters that are kept of that text, from its end."""
SUFFIX = ".xml"
OPTION_MARK = "junit"
"""A part of the options that name a JUnit file, such as `--junitxml` and `--junit-xml`."""
State = Literal["passed", "failed", "xfailed", "skipped"]
SKIPPED = "skipped"
NAMELESS = "a test without a name"
FAILURES = frozenset(("failure", "error"))
SUITES = frozenset(("testsuite", "testsuites"))
XFAIL = "pytest.xfail"
"""Type of a skip that stands for a failure that the test expects."""
NOT_RUN = frozenset(("disabled", "ignored", "notrun", "skipped"))
"""Values of `status` of a test case that was not run, as of CTest and GoogleTest."""
SEVERITY: Mapping[State, int] = {"passed": 0, "skipped": 1, "xfailed": 2, "failed": 3}


class CaseResult(Struct, frozen=True, kw_only=True):
    """The result of the tests with a name."""

    state: State
    """The worst result."""
    reason: str = ""
    """Text of its failure or skip; the first line is a summary, such as "KeyError: 'x'"."""
    count: int = 1
    """Number of tests with this name."""

    def after(self, earlier: CaseResult | None) -> CaseResult:
        """Returns the result of these tests and of `earlier` ones with the same name, if any."""
        if earlier is None:
            return self
        worst = max((earlier, self), key=lambda result: SEVERITY[result.state])
        count = earlier.count + self.count
        return CaseResult(state=worst.state, reason=worst.reason, count=count)

    @property
    def error(self) -> str:
        """The first line of the reason."""
        return self.reason.partition("\n")[0].strip()


class Results(NamedTuple):
    """The content of the JUnit files of a run."""

    tests: Mapping[str, CaseResult]
    """Results by the names of the tests."""
    problems: Sequence[str]
    """Why a file has no results, without the version, such as "results.xml has no test"."""


class FileState(NamedTuple):
    """Fields of a file that change when a command writes it."""

    inode: int
    size_bytes: int
    changed_ns: int
    """Time of the last change of the inode, which no program can set."""


class _OpenCase(Struct, kw_only=True):
    """A test case, or a failure of a whole suite, that is being read."""

    name: str
    is_suite: bool = False
    state: State = "passed"
    summary: str = ""
    text: str = ""

    def result(self) -> CaseResult:
        """Returns the result; its reason begins with a summary."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        summary = self.summary.strip()
        if not summary and lines:
            summary = lines[0].strip()
        tail = "\n".join(lines)[-MAX_REASON_LENGTH:]
        return CaseResult(state=self.state, reason=f"{summary[:MAX_REASON_LENGTH]}\n{tail}".strip())


class ResultsReader:
    """Reads test cases without a tree; a document type, which may expand without end, ends it."""

    def __init__(self) -> None:
        self.results: dict[str, CaseResult] = {}
        self.is_junit = False
        """True if the document has test suites."""
        self._has_begun = False
        self._suites: list[str] = []
        self._case: _OpenCase | None = None
        self._reads_text = False
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add_text
        self._parser.StartDoctypeDeclHandler = self._refuse

    def read(self, content: bytes) -> None:
        """Reads a whole document.

        Raises:
            ValueError: The content is not XML, has a document type, or too many tests.
        """
        try:
            self._parser.Parse(content, True)
        except (expat.ExpatError, LookupError) as error:  # of the document, or of its encoding
            raise ValueError(f"not XML: {error}") from None

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.is_junit = tag in SUITES
        if tag in SUITES:
            self._suites.append(attributes.get("name", ""))
        elif tag == "testcase":
            names = (attributes.get("classname", ""), attributes.get("name", ""))
            self._case = _OpenCase(name=".".join(filter(None, names)) or NAMELESS)
            if attributes.get("status", "").lower() in NOT_RUN:
                self._case.state = "skipped"
        elif tag in FAILURES:
            if self._case is None:
                suite = next(filter(None, reversed(self._suites)), NAMELESS)
                self._case = _OpenCase(name=suite, is_suite=True)
            self._note(self._case, "failed", attributes)
        elif tag == SKIPPED and self._case is not None:
            state: State = "skipped"
            if attributes.get("type") == XFAIL:
                state = "xfailed"
            self._note(self._case, state, attributes)

    def _note(self, case: _OpenCase, state: State, attributes: Mapping[str, str]) -> None:
        """Keeps the worst state of a case, with its text."""
        if SEVERITY[state] > SEVERITY[case.state]:
            case.state = state
            case.summary = attributes.get("message", "")
            case.text = ""
            self._reads_text = True

    def _add_text(self, text: str) -> None:
        case = self._case
        if case is not None and self._reads_text and len(case.text) < MAX_TEXT_LENGTH:
            case.text = (case.text + text)[:MAX_TEXT_LENGTH]

    def _end(self, tag: str) -> None:
        if tag in SUITES and self._suites:
            self._suites.pop()
        if self._case is None:
            return
        if tag in FAILURES or tag == SKIPPED:
            self._reads_text = False
        if tag == "testcase" or (tag in FAILURES and self._case.is_suite):
            self._add(self._case)
            self._case = None

    def _add(self, case: _OpenCase) -> None:
        earlier = self.results.get(case.name)
        if earlier is None and len(self.results) >= MAX_TESTS:
            raise ValueError(f"more than {MAX_TESTS} tests")
        self.results[case.name] = case.result().after(earlier)

    def _refuse(self, *_: object) -> None:
        raise ValueError("a document type is not accepted")


def result_files(words: Sequence[str]) -> dict[str, bool]:
    """Returns the XML files that a command line names, as in `--junitxml=results.xml`.

    The value is true for a file that the command must write: an option of JUnit files names it.
    """
    paths: dict[str, bool] = {}
    previous = ""
    for part in parts_of(words):
        option, _, value = part.rpartition("=")
        if value.endswith(SUFFIX):
            is_option = OPTION_MARK in option.lower() or (
                previous.startswith("-") and OPTION_MARK in previous.lower()
            )
            paths[value] = paths.get(value, False) or is_option
        previous = part
    return paths


def arguments_in(words: Sequence[str]) -> list[str]:
    """Returns the arguments of a command, and the values of its options."""
    return [part.rpartition("=")[2] for part in parts_of(words)]


def parts_of(words: Sequence[str]) -> list[str]:
    """Returns the arguments of a command.

    An argument with blanks can be a command, as behind `bash -c`.
    """
    parts = [part for word in words[1:] for part in word.split()]
    return [part.strip("'\";") for part in parts]


def file_states(paths: Iterable[str]) -> dict[str, FileState]:
    """Returns the states of the files that are there."""
    states: dict[str, FileState] = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            states[path] = FileState(status.st_ino, status.st_size, status.st_ctime_ns)
    return states


def read_results(paths: Mapping[str, bool], before: Mapping[str, FileState]) -> Results:
    """Returns the results of tests in files that the run has written after `before`.

    `paths` come from `result_files`. A file that a command must write and that has no results is
    a problem. A file that cannot be read is one, too, since it may have results.
    """
    tests: dict[str, CaseResult] = {}
    problems: list[str] = []
    after = file_states(paths)
    for path, must_be_written in paths.items():
        if path not in after or after[path] == before.get(path):
            if must_be_written:
                problems.append(f"{path} was not written")
            continue
        reader = ResultsReader()
        try:
            if after[path].size_bytes > MAX_BYTES:
                raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
            with open_file(path, accepts_pipes=False) as file:
                reader.read(file.read(MAX_BYTES))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
            continue
        except ValueError as error:
            problems.append(f"{path} cannot be read: {error}")
            continue
        if not reader.results and (must_be_written or reader.is_junit):
            problems.append(f"{path} has no test")
        for name, result in reader.results.items():
            tests[name] = result.after(tests.get(name))
    return Results(tests, problems)


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
