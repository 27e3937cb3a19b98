"""docs/planning.md:

its first commands run with the packages that the page installs, and no others.
"""

import re
import shlex
from pathlib import Path

import pytest

from scripts.locked import LOCK, Lock
from tests.running_server import ROOT
from tests.vllm_understudy.wire.test_wheel import HERE, need_index, run

PAGE = (ROOT / "docs" / "planning.md").read_text("utf-8")
BLOCK = re.compile(r"```console\n\$ pip (install .+)\n\$ understudy (plan (?:.*\\\n)*.*)\n")


def planning_words() -> list[str]:
    """Returns the arguments of Python for the page's first command."""
    [(_, command)] = BLOCK.findall(PAGE)
    return ["-m", "app", *shlex.split(command.replace("\\\n", ""))]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with what the page installs, in the locked versions."""
    [(installation, _)] = BLOCK.findall(PAGE)
    folder = tmp_path_factory.mktemp("environment")
    interpreter = folder / "bin" / "python"
    run(HERE / "python", "-m", "venv", "--without-pip", folder, cwd=folder)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(Lock(LOCK).requirements(["plan"])))
    words = ["-q", "--python", interpreter, "--constraint", constraints]
    words += shlex.split(installation)[1:]
    need_index(run(HERE / "uv", "pip", "install", *words, cwd=ROOT))
    return interpreter


@pytest.mark.timeout(300)
def test_packages_from_the_planning_page_suffice_for_plans_and_charts(
    python: Path, tmp_path: Path
) -> None:
    plan = planning_words()
    picture = tmp_path / "plan.png"
    words = [*plan, "--seconds", "10", "--plot", str(picture)]
    done = run(python, *words, cwd=ROOT)
    assert (done.returncode, done.stdout.startswith("Cheapest")) == (0, True), done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(300)
def test_missing_dask_is_reported_in_one_line(python: Path) -> None:
    plan = planning_words()
    done = run(python, *plan, "--backend", "dask=127.0.0.1:1", cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: --backend: requires distributed: pip install -e '.[dask]'\n"
