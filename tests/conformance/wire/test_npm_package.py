"""The npm package of clients/js: its README's example with four agents, and the rest of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.clients import HERE
from tests.needs import NODE, NODE_CLIENTS
from tests.running_server import ROOT

pytestmark = pytest.mark.node
[EXAMPLE] = re.findall(r"```js\n(.*?)```", (ROOT / "clients" / "js" / "README.md").read_text(), re.DOTALL)


def project(folder: Path) -> dict[str, str]:
    """Makes a project with the packages and a command `understudy`; returns its environment."""
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "vllm-understudy").symlink_to(ROOT / "clients" / "js")
    for package in (NODE_CLIENTS / "node_modules").iterdir():
        (folder / "node_modules" / package.name).symlink_to(package)
    (folder / "agent.mjs").write_text((HERE / "node" / "agent.mjs").read_text())
    (folder / "bin").mkdir()
    command = folder / "bin" / "understudy"
    command.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec "{sys.executable}" -m app "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("agent", ["openai", "ai", "anthropic", "agents", ""])
def test_an_agents_loop_is_set_and_verified(agent: str, tmp_path: Path) -> None:
    environment = project(tmp_path) | {"AGENT": agent}
    own = (HERE / "node" / "package.test.mjs").read_text()
    (tmp_path / "a.test.mjs").write_text(EXAMPLE if agent else own)
    command = [str(NODE), "--test", "--test-reporter=tap", "a.test.mjs"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {1 if agent else 4}" in done.stdout
