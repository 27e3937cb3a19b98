"""The real Codex, opencode, Claude Code and Aider do the task of docs/coding-agents.md."""

from pathlib import Path

import pytest
import requests
import yaml

from tests.conformance.agent_pages import (
    AGENTS,
    CORRECT,
    SERVER_FLAGS,
    TASK_FILE,
    make_folder,
    run_agent,
    section,
)
from tests.running_server import running_server

pytestmark = pytest.mark.timeout(180)  # opencode starts slowly beside a busy machine
MARKERS = {"aider": pytest.mark.aider}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKERS.get(name, pytest.mark.coding_agents)) for name in AGENTS],
)
def test_coding_agent_completes_its_task_with_the_documented_script(
    name: str, tmp_path: Path
) -> None:
    page_section = section(AGENTS[name])
    script = tmp_path / f"{name}.yaml"
    script.write_text(page_section.files[script.name])
    rules = yaml.safe_load(script.read_text())["rules"]
    with running_server("--script", str(script), *SERVER_FLAGS) as server:
        make_folder(page_section, tmp_path, server.port)
        output = run_agent(name, page_section, tmp_path, server.port)
        entries = requests.get(f"{server.url}/admin/journal", timeout=10).json()["entries"]
    assert (tmp_path / TASK_FILE).read_text() == CORRECT
    if name == "aider":  # the others send what the program printed, and a rule matches that
        assert "\nHello\n" in output
    assert {entry["status"] for entry in entries} == {200}
    answered = [entry["rule"].partition("(")[2].rstrip(")") for entry in entries]
    assert sorted(answered) == sorted(rule["name"] for rule in rules)
