"""docs/clients.md: its versions are those of the tests, and its examples run."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from shutil import which

import pytest

from tests.needs import CLIENTS_PYTHON, NODE, NODE_CLIENTS
from tests.running_server import ROOT, RunningServer

PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
ROWS = dict(re.findall(r"(?m)^\| \[([^\]]+)\]\([^)]*\) \| ([^|]+) \|", PAGE))
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
CONFORMANCE = Path(__file__).parents[1]
INSTALLED_HERE = ("from openai", "from anthropic")
"""Beginnings of the examples whose packages are in the environment of the tests."""
ADDRESS = "http://localhost:8000"
MODEL = "understudy-tiny"


def npm_versions(folder: str) -> dict[str, str]:
    package = json.loads((CONFORMANCE / folder / "package.json").read_text())
    return {**package["dependencies"], **package.get("optionalDependencies", {})}


def test_versions_on_the_page_are_those_of_the_tests() -> None:
    groups = tomllib.loads((CONFORMANCE / "python" / "pyproject.toml").read_text())
    pins = dict(
        re.fullmatch(r"([\w-]+)(?:\[\w+\])?==([\d.]+)", pin).groups()  # type: ignore[union-attr]
        for pin in groups["dependency-groups"]["clients"]
    )
    node = npm_versions("node")
    agents = npm_versions("coding_agents")
    assert {
        "OpenAI SDK, Python": version("openai"),
        "OpenAI SDK, JavaScript": node["openai"],
        "Anthropic SDK, Python": version("anthropic"),
        "LangChain": pins["langchain-openai"],
        "LlamaIndex": pins["llama-index-llms-openai-like"],
        "pydantic-ai": pins["pydantic-ai-slim"],
        "instructor": pins["instructor"],
        "LiteLLM": pins["litellm"],
        "AI SDK": node["ai"],
        "Codex CLI": agents["@openai/codex"],
        "opencode": agents["opencode-linux-x64-baseline"],
        "Claude Code": agents["@anthropic-ai/claude-code"],
        "Java's HttpClient": "JDK 17",
    } == ROWS


def _first_line(text: str) -> str:
    return text.splitlines()[0]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(text, marks=[pytest.mark.clients] * (not text.startswith(INSTALLED_HERE)))
        for text in EXAMPLES
    ],
    ids=_first_line,
)
def test_python_example_prints_a_reply(example: str, vllm: RunningServer) -> None:
    python = sys.executable if example.startswith(INSTALLED_HERE) else str(CLIENTS_PYTHON)
    done = run([python, "-"], example, vllm)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.node
@pytest.mark.parametrize("example", SCRIPTS, ids=_first_line)
def test_javascript_example_prints_a_reply(
    example: str, vllm: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(NODE_CLIENTS / "node_modules")
    file = tmp_path / "example.mjs"
    file.write_text(example.replace(ADDRESS, vllm.url).replace(MODEL, "tiny"))
    done = run([str(NODE), str(file)], "", vllm)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.java
@pytest.mark.timeout(120)
def test_java_client_reads_a_chat_a_stream_and_an_error(vllm: RunningServer) -> None:
    program = str(CONFORMANCE / "java" / "Client.java")
    done = run([which("java") or "java", program, vllm.url, "tiny"], "", vllm)
    assert done.returncode == 0, done.stderr
    status, body, events, error = done.stdout.splitlines()
    choice = json.loads(body)["choices"][0]
    assert (status, error) == ("200", "400")
    assert choice["finish_reason"] == "length" and choice["message"]["content"]
    assert int(events) > 6, "a role, tokens, and the end"


def run(command: list[str], text: str, server: RunningServer) -> subprocess.CompletedProcess[str]:
    """Runs a program, whose text names the address and the model of the documentation."""
    return subprocess.run(
        command,
        input=text.replace(ADDRESS, server.url).replace(MODEL, "tiny"),
        capture_output=True,
        text=True,
        timeout=110,
    )
