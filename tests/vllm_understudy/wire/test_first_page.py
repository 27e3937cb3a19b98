"""docs/index.md: the command of each job runs as it is written, and prints what the page shows."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.running_server import ROOT

PAGE = (ROOT / "docs" / "index.md").read_text()
JOBS = re.findall(
    r"(?ms)^## ([\w ]+)\n(?:(?!^## ).)*?^```console\n\$ ((?:[^\n]*\\\n)*[^\n]+)\n(.*?)^```", PAGE
)


def shape(line: str) -> str:
    """A line without its figures, and without the room that they take."""
    return re.sub(r"[ =-]+", " ", re.sub(r"[\d.,]+", "0", line))


def test_start_page_begins_with_five_jobs_that_have_a_command() -> None:
    names = [name for name, *_ in JOBS]
    assert names == [
        "Test a client",
        "Test an agent",
        "Load a router",
        "Plan capacity",
        "Teach an engine",
    ]


@pytest.mark.timeout(300)  # the page's own promise
@pytest.mark.parametrize(
    ("command", "shown"), [job[1:] for job in JOBS], ids=[name for name, *_ in JOBS]
)
def test_commands_of_the_start_page_print_the_documented_output(
    command: str, shown: str, environment: dict[str, str], tmp_path: Path
) -> None:
    words = ["bash", "-ec", command]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=290
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    wanted = [line for line in shown.splitlines() if line != "..."]
    if not command.startswith("understudy simulate"):  # a simulation prints the same everywhere
        printed = [*map(shape, printed)]
        wanted = [*map(shape, wanted)]
    assert [line for line in wanted if line not in printed] == []
    assert all(
        (tmp_path / file).stat().st_size > 100_000 for file in re.findall(r"\S+\.html", command)
    )
