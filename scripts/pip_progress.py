"""Installs the packages of a requirements file by pip, and shows how many of them are there.

python scripts/pip_progress.py FILE [FLAG ...]: FLAGs are those of `pip install`. pip itself prints
either nothing for a minute, or hundreds of lines. Its output is shown if it fails. Needs no
packages.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

COMMAND = (
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--no-color",
    "--progress-bar=off",
)
PACKAGE = re.compile(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)")
STEPS = 4
"""Lines of progress where the output is not a terminal."""


class Progress:
    """Counts packages: in one line on a terminal, else in a few lines."""

    def __init__(self, total: int, is_terminal: bool) -> None:
        self._total = total
        self._is_terminal = is_terminal
        self._step = 0

    def show(self, count: int, name: str) -> None:
        """Shows the number of packages and the name of the latest one."""
        if self._is_terminal:
            print(f"\r\x1b[K  {count} of {self._total} packages: {name}", end="", flush=True)
            return
        step = STEPS * count // max(self._total, 1)
        if step > self._step:
            self._step = step
            print(f"  {count} of {self._total} packages", flush=True)

    def clear(self) -> None:
        """Removes the line of a terminal."""
        if self._is_terminal:
            print("\r\x1b[K", end="", flush=True)


def ensure_pip() -> int:
    """Installs pip where `uv sync` made an environment without it. Returns an exit status."""
    if find_spec("pip") is not None:
        return 0
    done = subprocess.run(
        (sys.executable, "-m", "ensurepip"), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.stderr.write(f"{sys.prefix} has no pip, and ensurepip failed:\n{done.stderr}")
    return done.returncode


def main(argv: Sequence[str]) -> int:
    """Returns the exit status of pip, or of its own installation if that failed."""
    path, *flags = argv
    status = ensure_pip()
    if status != 0:
        return status
    total = sum("==" in line for line in Path(path).read_text("utf-8").splitlines())
    progress = Progress(total, sys.stdout.isatty())
    lines = []
    names: set[str] = set()
    with subprocess.Popen(
        [sys.executable, *COMMAND, *flags, "--requirement", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            package = PACKAGE.match(line)
            if package is not None and package[1] not in names:
                names.add(package[1])
                progress.show(min(len(names), total), package[1])
    progress.clear()
    if pip.returncode != 0:
        sys.stderr.write("".join(lines))
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
