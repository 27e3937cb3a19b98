"""The scripts behind the workflows, and the files that a contributor reads first."""

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from app.core.engine.batch import SchedulerLimits, SequenceState
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.schedulers import make_scheduler
from app.core.engine.waiting_queue import WaitingQueue
from scripts.extension_tests import CONTRACT_TESTS, changed_extensions, pytest_paths
from scripts.llms_txt import PATH, llms_txt
from scripts.release import contradictions
from tests.running_server import ROOT

NAMES = ("devmode", "openapi", "workbench_commands")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
MAX_ROOT_ENTRIES = 36


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("app/extensions/devmode/lifecycle.py", ["devmode"]),
        ("tests/extensions/openapi/test_document.py", ["openapi"]),
        ("app/core/extensions.py", ["devmode", "openapi", "workbench_commands"]),
        ("config/settings.py", []),
        ("workbench/plan/command.py", ["workbench_commands"]),
        ("tests/workbench/plan/test_plan.py", ["workbench_commands"]),
        ("app/extensions/devmode2/routes.py", []),
    ],
)
def test_app_extension_of_a_changed_file_is_derived_from_the_path(
    file: str, expected: list[str]
) -> None:
    assert changed_extensions([file, "README.md"], NAMES) == expected


def test_tests_of_an_app_extension_include_tests_that_import_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tests" / "extensions" / "uptime"
    folder.mkdir(parents=True)
    (folder / "test_uptime.py").write_text("import app.extensions.uptime\n")
    (tmp_path / "tests" / "conformance").mkdir()
    (tmp_path / "tests" / "conformance" / "test_a.py").write_text(
        "from app.extensions.uptime import x\n"
    )
    (tmp_path / "tests" / "conformance" / "test_b.py").write_text(
        "from app.extensions.other import x\n"
    )
    paths = pytest_paths("uptime", tmp_path)
    expected = [*CONTRACT_TESTS, "tests/extensions/uptime", "tests/conformance/test_a.py"]
    assert paths == expected
    assert all((ROOT / path).is_file() for path in CONTRACT_TESTS)


def test_release_with_different_version_numbers_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "clients" / "js").mkdir(parents=True)
    (tmp_path / "clients" / "js" / "package.json").write_text('{"version": "1.1.0"}')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0\n")
    assert contradictions("v1.2.0", tmp_path) == [
        "clients/js has version 1.1.0, the tag has 1.2.0",
    ]
    assert len(contradictions("1.3", tmp_path)) == 4


def test_release_check_accepts_the_version_of_pyproject() -> None:
    [version] = re.findall(r'(?m)^version = "(.*)"', (ROOT / "pyproject.toml").read_text())
    assert contradictions(f"v{version}") == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_steps_run_only_make_targets_or_pinned_actions(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", MAKEFILE))
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.search(r"@[0-9a-f]{40}$", step["uses"]), step
                continue
            for line in step["run"].splitlines():
                command = re.search(r"make (?:-\S+ )*([a-z-]+)", line)
                assert command and command[1] in targets, line


def test_number_of_repository_root_entries_is_within_the_limit() -> None:
    ignored = {name.rstrip("/") for name in (ROOT / ".gitignore").read_text().split()} | {".git"}
    entries = sorted({path.name for path in ROOT.iterdir()} - ignored)
    entries = [name for name in entries if not name.endswith((".log", ".sqlite", ".egg-info"))]
    assert len(entries) <= MAX_ROOT_ENTRIES, entries


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "AGENTS.md", "README.md"])
def test_page_for_contributors_names_existing_make_targets(name: str) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", MAKEFILE))
    page = (ROOT / name).read_text()
    named = set(re.findall(r"(?m)(?:`|^\$ )make ([a-z-]+)", page))
    assert named and named <= targets


def test_page_for_agents_is_short_and_names_existing_folders_and_pages() -> None:
    page = (ROOT / "AGENTS.md").read_text()
    assert len(page.splitlines()) <= 60
    named = re.findall(r"\]\(([\w./]+)\)", page) + re.findall(r"(?m)^\| `([\w/]+)`", page)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_list_of_pages_for_language_models_is_up_to_date_and_whole() -> None:
    assert PATH.read_text("utf-8") == llms_txt(), "run: python -m scripts.reference_pages"
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", llms_txt()))
    assert listed == {path.name for path in PATH.parent.glob("*.md")}


def test_dev_container_installs_the_packages_of_the_commands_in_the_readme() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"(?m)^\$ make ([\w-]+)", readme) == ["run", "test-all"]
    # Both commands need what `make venv` installs, which is done once, when the container is made.
    assert container["postCreateCommand"] == "make venv"
    assert container["forwardPorts"] == [8000]
    [version] = re.findall(r"python:([\d.]+)-", container["image"])
    assert f"FROM python:{version}-slim" in (ROOT / "Dockerfile").read_text()


def test_policy_for_contributors_starts_one_sequence_in_each_step() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    example = re.search(r"```python\n( *\"\"\"A rule .*?)```", page, re.DOTALL)
    assert example
    names: dict[str, Any] = {}
    exec(dedent(example[1]), names)
    queue: WaitingQueue[SequenceState] = WaitingQueue()
    for _ in range(3):
        sequence = SequenceState(4, 9, 0)
        queue.add(sequence)
    blocks = CountedBlocks(100, 16)
    scheduler = make_scheduler(SchedulerLimits(), blocks, queue, [names["SingleStart"]()])
    batches = [scheduler.schedule() for _ in range(4)]
    assert [len(batch.admitted) for batch in batches if batch] == [1, 1, 1, 0]
