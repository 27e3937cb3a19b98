"""What the tests of a room make of a mutant: first those that ran its line, in the end all of them.

Which tests ran which line is seen once for every room, by coverage, before the first mutant. It
decides only what is tried first, so that most mutants are killed within seconds: what those let
pass, all others judge.

All of it happens in a copy of the project in a temporary folder; the working tree is only read.
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
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ENGINE = (
    *(
        f"tests/extensions/lab/fidelity/test_{name}.py"
        for name in ("simulation", "truth", "calibrate")
    ),
    "tests/core/simulated",
    "tests/extensions/devmode/test_lifecycle.py",
    "tests/extensions/llm/remote",
)
"""What steps say off line, and replies; an engine's life in a server, and in a process of its own.
"""
WIRE = tuple(
    f"tests/conformance/wire/test_{name}.py" for name in ("wire", "responses", "tool_calls")
)
"""What real servers answer to bodies of all kinds."""
POOLED = ("tests/extensions/pooling/test_routes.py",)
"""What requests of the pooling routes are."""
SERVED = ("tests/surface", "tests/conformance")
"""What a real server answers on all its routes."""
ROOMS = {
    "engine": ("app/core/engine", "tests/core/engine", *ENGINE),
    "clock": ("app/core/base/clock", "tests/core/clock"),
    "protocol": ("app/core/protocol", "tests/core/protocol", "tests/core/api", *POOLED, *WIRE),
    "api": (
        "app/core/api",
        "tests/core/api",
        "tests/extensions/pooling",
        "tests/extensions/grpc",
        "tests/extensions/scripts",
        *SERVED,
    ),
    "extensions": ("app/extensions", "tests/core", *SERVED),
    "kvcache": ("app/core/engine/kvcache", "tests/core/kvcache"),
    "kvindex": ("app/extensions/kv_index", "tests/extensions/kv_index"),
    "schema": ("app/extensions/forms/schema", "tests/extensions/forms/schema"),
    "script": ("app/extensions/scripts", "tests/extensions/scripts"),
    "grammar": ("app/extensions/forms/grammar", "tests/extensions/forms/grammar"),
    "simulated": ("app/core/engine/simulated", "tests/core/simulated"),
}
"""The code of a room, and its tests: its own folder, and what else is there to test it.

What fields of `protocol` mean only an answer tells.
"""
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".node-*", ".hypothesis", ".*_cache", "__pycache__"
)
FAST, SLOW = ("-m", "not wire"), ("-m", "wire")
"""Options of pytest: which tests of a room run first, and which only when those are content."""
FAILED, NO_TESTS, TOO_SLOW = 1, 5, -1
"""Exit statuses of pytest:

a test has failed, it has selected none. The last stands for tests cut short.
"""
MOST_NEAREST = 300
"""Of the tests that ran a line, those that ran the fewest others.

Thousands would take long to find.
"""
PATIENCE, LEAST_LIMIT_S = 4, 30.0
"""The tests of a mutant may take so many times as long as without it, and at least so many seconds.
"""
MEMORY_BYTES = 16 << 30
NO_MORE: Mapping[str, str] = MappingProxyType({})
UNCOMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}
"""A mutant leaves nothing behind; the run without one compiles for all others."""


class Verdict(Enum):
    """What the tests make of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "TIMED OUT"
    SURVIVED = "SURVIVED"


class Lines:
    """Which tests ran which lines of a room, by the names that pytest knows them by."""

    def __init__(self, file: Path) -> None:
        self._tests: dict[str, dict[int, set[str]]] = {}
        self._breadth: Counter[str] = Counter()
        data = CoverageData(str(file))
        data.read()
        for path in data.measured_files():
            lines = self._tests[path] = {}
            for line, contexts in data.contexts_by_lineno(path).items():
                lines[line] = {context.rpartition("|")[0] for context in contexts if context}
                self._breadth.update(lines[line])

    def nearest(self, file: Path, line: int) -> list[str]:
        """The tests that say most of a line.

        It may be within a statement: then that of its first line.
        """
        lines = self._tests.get(str(file), {})
        first = max((each for each in lines if each <= line and lines[each]), default=0)
        tests = lines.get(first, set())
        return sorted(tests, key=lambda test: (self._breadth[test], test))[:MOST_NEAREST]


class Copy:
    """A copy of the project in which tests run."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self._python = folder / "understudy", python
        shutil.copytree(ROOT, self.folder, ignore=NOT_COPIED)
        self._limits: dict[tuple[str, tuple[str, ...]], float] = {}
        self._lines: dict[str, Lines] = {}

    def check(self, room: str) -> str:
        """Run the tests of a room without a mutant: their time limits, and which lines they run.

        Empty when they pass, and otherwise what pytest had to say.
        """
        for stage in (FAST, SLOW):
            begun = time.monotonic()
            status, output = self._run((*stage, *ROOMS[room][1:]), 3600.0)
            if status not in (0, NO_TESTS):
                return output
            self._limits[room, stage] = max(LEAST_LIMIT_S, PATIENCE * (time.monotonic() - begun))
        self._lines[room] = self._lines_of(room)
        return ""

    def _lines_of(self, room: str) -> Lines:
        """Some tests find that they take too much time while they are watched; that says nothing."""
        file = self.folder.parent / f"{room}.coverage"
        watched = ("--maxfail=0", f"--cov={ROOMS[room][0]}", "--cov-context=test", "--cov-report=")
        self._run((*FAST, *watched, *ROOMS[room][1:]), 3600.0, {"COVERAGE_FILE": str(file)})
        return Lines(file)

    def judge(self, room: str, path: str, line: int, code: str) -> Verdict:
        """What the tests of `room` make of it when the file at `path` is `code`, changed in `line`."""
        file = self.folder / path
        original = file.read_text()
        file.write_text(code)
        try:
            if self._nearest_fail(room, file, line):
                return Verdict.KILLED
            tests = _nearest_first(self.folder, room, path)
            for stage in (FAST, SLOW):
                status, _ = self._run((*stage, *tests), self._limits[room, stage], UNCOMPILED)
                if status not in (0, NO_TESTS):
                    return Verdict.TIMED_OUT if status == TOO_SLOW else Verdict.KILLED
            return Verdict.SURVIVED
        finally:
            file.write_text(original)

    def _nearest_fail(self, room: str, file: Path, line: int) -> bool:
        """Only a test that fails says something here:

        some may have been found by a name that is gone.
        """
        tests = self._lines[room].nearest(file, line)
        named = self.folder.parent / "nearest"
        named.write_text("\n".join(tests))
        return (
            bool(tests)
            and self._run((*FAST, f"@{named}"), self._limits[room, FAST], UNCOMPILED)[0] == FAILED
        )

    def _run(
        self, options: Sequence[str], limit_s: float, environ: Mapping[str, str] = NO_MORE
    ) -> tuple[int, str]:
        """The exit status of pytest and the end of its output; TOO_SLOW when it took longer than
        `limit_s`.

        Hypothesis tries the same on every mutant, is patient, and looks for no simpler example than
        the first that fails.
        """
        plain = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants")
        process = subprocess.Popen(
            [self._python, "-m", "pytest", *plain, *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environ},
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
            self._end_strays()
            process.communicate()

    def _end_strays(self) -> None:
        """End what tests have started in the copy and left behind."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(self.folder):
                    os.kill(int(entry.name), signal.SIGKILL)


def _nearest_first(folder: Path, room: str, path: str) -> list[str]:
    """The files of a room's tests, first those with words of the changed file's path in their own.

    Coverage sees nothing of what a server does in a process of its own.
    """
    files = [
        file.relative_to(folder).as_posix()
        for tests in ROOMS[room][1:]
        for file in (
            [folder / tests]
            if tests.endswith(".py")
            else sorted((folder / tests).rglob("test_*.py"))
        )
    ]
    words = _words(path.partition(room)[2])
    return sorted(files, key=lambda file: -len(words & _words(file)))


def _words(path: str) -> set[str]:
    """Of the names in a path, in the singular."""
    return {word.rstrip("s") for word in re.split(r"[\W_]+", path.removesuffix(".py")) if word}


def _limit_memory() -> None:
    """At most `MEMORY_BYTES`, or less where the shell allows no more."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
