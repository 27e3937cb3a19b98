"""Tests the repository without an extension.

python -m scripts.removal_test [--tests] [NAME ...]: for each extension (without names, for all)
copies the repository without `app/extensions/NAME` and `tests/extensions/NAME`, starts a server
there and asks it for a chat. Extensions that require the deleted one are off, and each prints one
line. With --tests it also runs the tests of the copy that start no process, except for those of the
extensions that are off, and those of tools that import them; none may fail, and no test may be
skipped that is not skipped in the whole repository, too.

python -m scripts.removal_test choose WEEK: prints the six extensions whose turn it is in a week,
which is a number.
"""

import argparse
import ast
import atexit
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from app.core.built_in import extension_names, import_extension

ROOT = Path(__file__).resolve().parent.parent
CHOSEN = 6
"""Extensions without which the tests run each week."""
NOT_COPIED = (
    *(".git", ".venv*", ".node-*", ".oracle", ".judge"),
    *(".*_cache", ".hypothesis", "__pycache__", "dist", "site"),
)
"""Patterns of names."""
OF_ALL_EXTENSIONS = (
    "tests/config/test_documents.py",
    "tests/fidelity/oracle/test_kept.py",
    "tests/test_memory_of_deployments.py",
)
"""Tests of pages that list what extensions have, of recorded answers, and of deployments."""
TOOLS = ("benchmarks", "fidelity", "research", "workbench", "tests/fidelity", "tests/workbench")
"""Folders that may import extensions."""
PYTEST = ("-m", "pytest", "-q", "-rsfE", "-m", "not wire", "--ignore=tests/servers", "--tb=short")
SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] ([^:]+\.py)(?::\d+)?: (.*)$", re.MULTILINE)
OFF = re.compile(r"^extension (\w+) is disabled because it requires \w+$", re.MULTILINE)
"""The line of an extension that requires the deleted one."""


class ChatProcess:
    """A process of `scripts.removal_chat`, which ends with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.removal_chat"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def answer_chat(self, copy: Path) -> tuple[str, str]:
        """Returns the standard output and error of a server in `copy` that answers a chat.

        Raises:
            RuntimeError: The core cannot be imported, or imports an extension.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{copy}\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError("scripts.removal_chat has ended, with the error above")
        files = (copy / "stdout", copy / "stderr")
        output, errors = (file.read_text() for file in files)
        # The tests of the copy count the entries of its root.
        for file in files:
            file.unlink()
        return output, errors

    def _end(self) -> None:
        self._process.communicate()


@cache
def chat_process() -> ChatProcess:
    """Returns the process that answers all chats."""
    return ChatProcess()


def copy_without(name: str, copy: Path) -> None:
    """Copies the repository except for the extension `name`, its tests, environments and caches."""
    shutil.copytree(ROOT, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for folder in (copy / "app" / "extensions" / name, copy / "tests" / "extensions" / name):
        if folder.exists():
            shutil.rmtree(folder)


def link_server_without(name: str, copy: Path) -> None:
    """Links what a server imports, except for the extension `name`: files take a second to copy."""
    (copy / "app" / "extensions").mkdir(parents=True)
    for package in ("config", "vllm_facts", "workbench"):
        (copy / package).symlink_to(ROOT / package)
    for part in (ROOT / "app").iterdir():
        if part.name != "extensions":
            (copy / "app" / part.name).symlink_to(part)
    for part in (ROOT / "app" / "extensions").iterdir():
        if part.name != name:
            (copy / "app" / "extensions" / part.name).symlink_to(part)


def dependents(name: str) -> set[str]:
    """Returns the extensions that require `name`, directly or through another extension."""
    extensions = {other: import_extension(other) for other in extension_names()}
    missing = {name}
    previous: set[str] = set()
    while missing != previous:
        previous = set(missing)
        for other, extension in extensions.items():
            if missing.intersection(extension.requires):
                missing.add(other)
    return missing - {name}


def failure_of_chat(copy: Path, left_out: Collection[str]) -> str | None:
    """Returns what a server in `copy` prints; None if it answers a chat as expected.

    It also has to print one line for each extension that is `left_out`.
    """
    output, errors = chat_process().answer_chat(copy)
    extensions_off = sorted(OFF.findall(errors))
    if output == "200 assistant\n" and extensions_off == sorted(left_out):
        return None
    return output + errors


def run_pytest(folder: Path, arguments: Sequence[str], workers: int) -> tuple[int, str]:
    """Returns the exit status of pytest, and its output."""
    command = [sys.executable, *PYTEST, *arguments]
    if workers:
        command += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


@cache
def imports_of(path: Path) -> list[str]:
    """Returns the modules that a module imports when it is imported itself, or its tests run."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes: Iterable[ast.AST] = tree.body
    if path.name.startswith("test_"):
        nodes = ast.walk(tree)
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return names


def tool_tests(copy: Path, off: Collection[str]) -> list[str]:
    """Returns the tests of tools that need an extension that is `off`, or its tests.

    A test belongs to a tool if it, or what it imports, is in one of TOOLS.
    """
    missing = tuple(f"{parent}.extensions.{name}" for parent in ("app", "tests") for name in off)
    tools = tuple(str(copy / folder) for folder in TOOLS)
    found = []
    for test in sorted((copy / "tests").rglob("test_*.py")):
        waiting = [test]
        seen = {test}
        while waiting:
            importer = waiting.pop()
            for module in imports_of(importer):
                if module.startswith(missing) and str(importer).startswith(tools):
                    found.append(str(test.relative_to(copy)))
                    waiting = []
                    break
                path = copy.joinpath(*module.split("."))
                for file in (path.with_suffix(".py"), path / "__init__.py"):
                    if file.is_file() and file not in seen:
                        seen.add(file)
                        waiting.append(file)
    return found


def skipped_tests(output: str) -> Counter[tuple[str, str]]:
    """Returns how many tests pytest skipped, by file and reason."""
    skipped: Counter[tuple[str, str]] = Counter()
    for count, file, reason in SKIPPED.findall(output):
        skipped[file, reason] += int(count)
    return skipped


def failure_of_tests(copy: Path, name: str, left_out: Collection[str], workers: int) -> str | None:
    """Returns why the tests of `copy`, which lacks `name`, do not pass; None if they do."""
    ignored = [f"--ignore=tests/extensions/{name}" for name in sorted(left_out)]
    off = {name, *left_out}
    ignored += [f"--ignore={path}" for path in (*OF_ALL_EXTENSIONS, *tool_tests(copy, off))]
    status, output = run_pytest(copy, ignored, workers)
    if status != 0:
        return output
    skipped = skipped_tests(output)
    if not skipped:
        return None
    files = sorted({file for file, _ in skipped})
    _, output = run_pytest(ROOT, files, workers)
    additional = skipped - skipped_tests(output)
    if not additional:
        return None
    return "\n".join(
        f"skipped: {count} in {file}: {reason}" for (file, reason), count in additional.items()
    )


def failure_without(name: str, *, tests: bool, workers: int) -> str | None:
    """Returns why the repository does not work without an extension; None if it does."""
    with tempfile.TemporaryDirectory(prefix=f"without-{name}-") as folder:
        copy = Path(folder)
        if tests:
            copy_without(name, copy)
        else:
            link_server_without(name, copy)
        left_out = dependents(name)
        failure = failure_of_chat(copy, left_out)
        if failure is None and tests:
            failure = failure_of_tests(copy, name, left_out, workers)
    return failure


def choose(week: int) -> list[str]:
    """Returns the extensions whose turn it is in a week, one after the other."""
    names = extension_names()
    first = week * CHOSEN
    return [names[(first + number) % len(names)] for number in range(CHOSEN)]


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 1 if the repository does not work without an extension."""
    if arguments[:1] == ["choose"]:
        print(" ".join(choose(int(arguments[1]))))
        return 0
    parser = argparse.ArgumentParser(description="Tests the repository without an extension.")
    parser.add_argument("names", nargs="*", choices=[*extension_names(), []], metavar="NAME")
    parser.add_argument("--tests", action="store_true", help="run the tests, too")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest; 0: no others")
    options = parser.parse_args(arguments)
    failed = []
    for name in options.names or extension_names():
        failure = failure_without(name, tests=options.tests, workers=options.workers)
        if failure is None:
            print(f"without {name}: passes", flush=True)
        else:
            failed.append(name)
            print(f"{failure}\nwithout {name}: FAILS", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
