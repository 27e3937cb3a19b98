"""The npm package of clients/js: its README's example with four agents, and the rest of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.clients import HERE
from tests.needs import NODE, NODE_CLIENTS
from tests.running_server import ROOT

pytestmark = pytest.mark.node
README = (ROOT / "clients" / "js" / "README.md").read_text("utf-8")
[EXAMPLE] = re.findall(r"```js\n(.*?)```", README, re.DOTALL)
INSTALLATIONS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
USE = "import('vllm-understudy').then((package) => console.log(typeof package.start))"


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
def test_documented_javascript_test_passes_with_every_agent_library(
    agent: str, tmp_path: Path
) -> None:
    environment = project(tmp_path) | {"AGENT": agent}
    test_file = (HERE / "node" / "package.test.mjs").read_text()
    (tmp_path / "a.test.mjs").write_text(EXAMPLE if agent else test_file)
    command = [str(NODE), "--test", "--test-reporter=tap", "a.test.mjs"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {1 if agent else 8}" in done.stdout


VITEST = """\
import { after, afterEach, before } from "node:test";
export { afterEach, after as afterAll };
export const beforeAll = (hook) => before(hook);
"""
TESTCONTAINERS = """\
export const Wait = { forHttp: (path, port) => ({ path, port }) };
export class AbstractStartedContainer {}
export class GenericContainer {
  constructor(image) { this.image = image; }
  withCommand(command) { this.command = command; return this; }
  withExposedPorts(port) { this.port = port; return this; }
  withWaitStrategy({ path }) { this.path = path; return this; }
  withStartupTimeout() { return this; }
  async start() {
    return { getHost: () => "docker.example", getMappedPort: (port) => 30000 + port };
  }
}
"""


@pytest.mark.parametrize("helper", ["vitest", "jest"])
def test_vitest_and_jest_helpers_manage_a_server(helper: str, tmp_path: Path) -> None:
    environment = project(tmp_path) | {"HELPER": helper}
    packages = tmp_path / "node_modules"
    # Not a link: the helpers import packages of the project.
    (packages / "vllm-understudy").unlink()
    shutil.copytree(ROOT / "clients" / "js", packages / "vllm-understudy")
    for name, module in (("vitest", VITEST), ("testcontainers", TESTCONTAINERS)):
        folder = packages / name
        if folder.is_symlink():
            folder.unlink()
        folder.mkdir()
        (folder / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
        (folder / "index.js").write_text(module)
    shutil.copy(HERE / "node" / "helpers.test.mjs", tmp_path / "a.test.mjs")
    done = subprocess.run(
        [str(NODE), "--test", "--test-reporter=tap", "a.test.mjs"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 3" in done.stdout


@pytest.mark.parametrize("commands", INSTALLATIONS, ids=["link", "packed copy"])
def test_documented_commands_install_the_package_from_a_clone(
    commands: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "clients" / "js", tmp_path / "understudy" / "clients" / "js")
    folder = tmp_path / "my-project"
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true}')
    npm_commands = re.findall(r"(?m)^\$ (npm .+)$", commands)
    assert npm_commands
    environment = {**os.environ, "npm_config_offline": "true", "npm_config_audit": "false"}
    for command in [*npm_commands, f'"{NODE}" -e "{USE}"']:
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "function\n"
