"""Runs the tests of a room on a mutant: first the tests that ran its line, then all others.

Before the first mutant, coverage finds which tests of a room run which line. This decides only
which tests run first, so that most mutants are killed within seconds: a mutant survives only if all
tests of the room pass.

Everything happens in a copy of the project in a temporary folder; the working tree is only read.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
SCHEMA_TESTS = (
    "tests/extensions/forms/schema",
    "tests/extensions/forms/backends",
    "tests/extensions/forms/test_schema_statuses.py",
)
"""Tests of schemas, and of the answers that the backends of vLLM give to them."""
REPLY_TESTS = (
    "tests/core/simulated",
    "tests/extensions/forms",
    "tests/extensions/tool_calls",
)
"""Tests of replies, and of the forms and calls that requests ask for."""
ENGINE_TESTS = (
    "tests/workbench/runs/test_simulation.py",
    "tests/workbench/runs/test_truth.py",
    "tests/workbench/runs/test_calibrate.py",
    *REPLY_TESTS,
    "tests/core/kvcache",
    "tests/core/lora",
    "tests/core/parsing",
    "tests/extensions/devmode/test_lifecycle.py",
    "tests/extensions/llm/remote",
)
"""Tests of steps without a server, of the engine's parts, and of its life in a process."""
WIRE_TESTS = (
    "tests/conformance/wire/test_wire.py",
    "tests/conformance/wire/test_responses.py",
    "tests/conformance/wire/test_tool_calls.py",
)
"""Tests of the responses of real servers to bodies of all kinds."""
POOLING_TESTS = ("tests/extensions/pooling/test_routes.py",)
"""Tests of the requests of the pooling routes."""
FIELD_TESTS = ("tests/extensions/beam_search", "tests/extensions/scale_out")
"""Tests of fields that few requests have."""
SURFACE_TESTS = ("tests/surface", "tests/conformance")
"""Tests of the responses of a real server on all its routes."""
API_TESTS = (
    "tests/core/api",
    "tests/extensions/pooling",
    "tests/extensions/grpc",
    "tests/extensions/scripts",
    *FIELD_TESTS,
    *SURFACE_TESTS,
)
TEXT_TESTS = ("tests/core/tokenization", "tests/core/api", "tests/surface", WIRE_TESTS[0])
METRICS_TESTS = (
    "tests/core/metrics",
    "tests/core/engine",
    "tests/core/kvcache",
    "tests/core/lora",
    "tests/surface",
    "tests/conformance/wire/test_golden.py",
)
"""Tests of instruments, of what the engine records, and of the values that a server returns."""
SERVER_TESTS = (
    "tests/core/server",
    "tests/core/http",
    "tests/core/middleware",
    "tests/core/web",
    "tests/core/metrics/test_http.py",
    "tests/core/api",
    "tests/surface",
    *WIRE_TESTS,
)
PROTOCOL_TESTS = (
    "tests/core/protocol",
    "tests/core/api",
    *FIELD_TESTS,
    *POOLING_TESTS,
    *WIRE_TESTS,
)
ROOMS = {
    "engine": ("app/core/engine", "tests/core/engine", *ENGINE_TESTS),
    "clock": ("app/core/base/clock", "tests/core/clock", "tests/core/engine"),
    "protocol": ("app/core/protocol", *PROTOCOL_TESTS),
    "api": ("app/core/api", *API_TESTS),
    "extensions": ("app/extensions", "tests/core", *SURFACE_TESTS),
    "kvcache": ("app/core/engine/kvcache", "tests/core/kvcache", "tests/core/engine"),
    "kvindex": ("app/extensions/kv_index", "tests/extensions/kv_index"),
    "schema": ("app/extensions/forms/schema", *SCHEMA_TESTS),
    "script": ("app/extensions/scripts", "tests/extensions/scripts"),
    "grammar": ("app/extensions/forms/grammar", "tests/extensions/forms/grammar"),
    "simulated": ("app/core/engine/simulated", *REPLY_TESTS, "tests/core/engine"),
    "text": ("app/core/text", *TEXT_TESTS),
    "metrics": ("app/core/base/metrics", *METRICS_TESTS),
    "server": ("app/core/server", *SERVER_TESTS),
}
"""Room -> its code, then its tests.

Only replies show the meaning of fields of `protocol`.
"""
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".node-*", ".hypothesis", ".*_cache", "__pycache__"
)
# Options of pytest: the tests of a room that run first, and those that run if the first pass.
Stage = tuple[str, str]
FAST = ("-m", "not wire")
SLOW = ("-m", "wire")
# Exit statuses of pytest: a test has failed, no test was selected, and (ours) tests were cut short.
FAILED = 1
NO_TESTS = 5
TOO_SLOW = -1
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
"""Line of pytest's summary."""
MAX_NEAREST = 300
"""Maximum number of tests that run first.

They are those of the line's tests that ran the fewest other lines: thousands would take too long.
"""
PATIENCE = 4
"""Time limit of the tests of a mutant, as a multiple of their time without a mutant."""
MIN_LIMIT_S = 30.0
"""Minimum time limit of the tests of a mutant, in seconds."""
CHECK_LIMIT_S = 3600.0
"""Time limit of the tests of a room without a mutant, in seconds."""
MEMORY_BYTES = 16 << 30
"""Limit of the address space of a test process."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
UNCOMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}
"""A mutant leaves no bytecode; the run without a mutant compiles for all others."""


class Verdict(Enum):
    """Result of the tests of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "TIMED OUT"
    SURVIVED = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Judgment:
    """Result of the tests of a mutant, and the name of the test that failed, or an empty text."""

    verdict: Verdict
    test: str = ""


class Lines:
    """Tests that ran each line of a room, by their pytest names."""

    def __init__(self, file: Path) -> None:
        self._tests: dict[str, dict[int, set[str]]] = {}
        self._line_counts: Counter[str] = Counter()
        data = CoverageData(str(file))
        data.read()
        for path in data.measured_files():
            lines: dict[int, set[str]] = {}
            self._tests[path] = lines
            for line, contexts in data.contexts_by_lineno(path).items():
                lines[line] = {context.rpartition("|")[0] for context in contexts if context}
                self._line_counts.update(lines[line])

    def nearest(self, file: Path, line: int) -> list[str]:
        """Returns the most specific tests of a line.

        For a line within a statement, they are the tests of the statement's first line.
        """
        lines = self._tests.get(str(file), {})
        first = max((number for number in lines if number <= line and lines[number]), default=0)
        tests = sorted(lines.get(first, set()))
        return sorted(tests, key=self._line_counts.__getitem__)[:MAX_NEAREST]


class Copy:
    """A copy of the project in which tests run."""

    def __init__(self, folder: Path, python: Path, stages: Sequence[Stage]) -> None:
        """`stages` follow the tests that ran the line of a mutant."""
        self.folder = folder / "understudy"
        self._python = python
        self._stages = stages
        shutil.copytree(ROOT, self.folder, ignore=NOT_COPIED)
        self._limits_s: dict[tuple[str, Stage], float] = {}
        self._lines: dict[str, Lines] = {}

    def check(self, room: str) -> str:
        """Runs the tests of a room without a mutant, for their time limits and their lines.

        Returns the end of pytest's output if a test fails, and otherwise an empty text.
        """
        start = time.monotonic()
        self._lines[room] = self._lines_of(room)
        self._limits_s[room, FAST] = max(MIN_LIMIT_S, PATIENCE * (time.monotonic() - start))
        for stage in self._stages:
            start = time.monotonic()
            status, output = self._run((*stage, *ROOMS[room][1:]), CHECK_LIMIT_S)
            if status not in (0, NO_TESTS):
                return output
            self._limits_s[room, stage] = max(MIN_LIMIT_S, PATIENCE * (time.monotonic() - start))
        return ""

    def _lines_of(self, room: str) -> Lines:
        # Coverage slows tests down, so some fail on their time limits. This does not matter.
        file = self.folder.parent / f"{room}.coverage"
        code, *tests = ROOMS[room]
        coverage = ("--maxfail=0", f"--cov={code}", "--cov-context=test", "--cov-report=")
        self._run((*FAST, *coverage, *tests), CHECK_LIMIT_S, {"COVERAGE_FILE": str(file)})
        return Lines(file)

    def judge(self, room: str, path: str, line: int, code: str) -> Judgment:
        """Runs the tests of `room` while the file at `path` is `code`, which differs in `line`."""
        file = self.folder / path
        original = file.read_text()
        file.write_text(code)
        try:
            judgment = self._judge_by_nearest(room, file, line)
            if judgment is not None:
                return judgment
            tests = _nearest_first(self.folder, room, path)
            for stage in self._stages:
                status, output = self._run(
                    (*stage, *tests), self._limits_s[room, stage], UNCOMPILED
                )
                if status == TOO_SLOW:
                    return Judgment(Verdict.TIMED_OUT)
                if status not in (0, NO_TESTS):
                    return Judgment(Verdict.KILLED, _failed_test(output))
            return Judgment(Verdict.SURVIVED)
        finally:
            file.write_text(original)

    def _judge_by_nearest(self, room: str, file: Path, line: int) -> Judgment | None:
        """Returns the judgment of the tests of this line; None if they pass.

        Other errors do not count: a test whose name depends on the mutant may be missing.
        """
        tests = self._lines[room].nearest(file, line)
        if not tests:
            return None
        names = self.folder.parent / "nearest"
        names.write_text("\n".join(tests))
        status, output = self._run((*FAST, f"@{names}"), self._limits_s[room, FAST], UNCOMPILED)
        if status == TOO_SLOW:
            return Judgment(Verdict.TIMED_OUT)
        if status == FAILED:
            return Judgment(Verdict.KILLED, _failed_test(output))
        return None

    def _run(
        self, options: Sequence[str], limit_s: float, variables: Mapping[str, str] = NO_VARIABLES
    ) -> tuple[int, str]:
        """Returns the exit status of pytest, and the end of its output.

        The status is TOO_SLOW after `limit_s` seconds. With its profile `mutants`, Hypothesis tries
        the same examples on every mutant, has no deadline, and does not simplify an example that
        fails.
        """
        plain = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants")
        process = subprocess.Popen(
            [self._python, "-m", "pytest", *plain, *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_limit_memory,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
            return process.returncode, output[-4000:]
        except subprocess.TimeoutExpired:
            process.kill()
            return TOO_SLOW, "too slow"
        finally:
            self._kill_strays()
            process.communicate()

    def _kill_strays(self) -> None:
        """Kills the processes that tests have started in the copy and left running."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(self.folder):
                    os.kill(int(entry.name), signal.SIGKILL)


def _failed_test(output: str) -> str:
    """Returns the name of the test that failed, or an empty text, such as after a crash."""
    match = FAILED_TEST.search(output)
    if match is None:
        return ""
    return match[1]


def _nearest_first(folder: Path, room: str, path: str) -> list[str]:
    """Returns the test files of a room; files with words of the changed file's path come first.

    Coverage does not see the lines that a server runs in a separate process.
    """
    files: list[Path] = []
    for tests in ROOMS[room][1:]:
        if tests.endswith(".py"):
            files.append(folder / tests)
        else:
            files += sorted((folder / tests).rglob("test_*.py"))
    words = _words(path.partition(room)[2])

    def shared_words(name: str) -> int:
        return len(words & _words(name))

    names = [file.relative_to(folder).as_posix() for file in files]
    return sorted(names, key=shared_words, reverse=True)


def _words(path: str) -> set[str]:
    """Returns the words of the names in a path, in the singular."""
    return {word.rstrip("s") for word in re.split(r"[\W_]+", path.removesuffix(".py")) if word}


def _limit_memory() -> None:
    """Limits this process to `MEMORY_BYTES`, or to the hard limit, if lower."""
    limit = MEMORY_BYTES
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
