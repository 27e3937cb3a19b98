"""docs/mcp.md: one test plays the model and the tools of an agent of openai-agents."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vllm_understudy
from tests.conformance.agent_pages import make_folder, run_agent, section
from tests.conformance.clients import printed_by
from tests.needs import CLIENTS_PYTHON
from tests.running_server import ROOT

PAGE = (ROOT / "docs" / "mcp.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def running() -> Iterator[vllm_understudy.Server]:
    with vllm_understudy.running_server() as server:
        server.mcp.python = str(CLIENTS_PYTHON)
        yield server


@pytest.mark.clients
def test_documented_mcp_agent_test_passes(running: vllm_understudy.Server) -> None:
    def run_my_agent(base_url: str, mcp_url: str, question: str) -> str:
        answer: str = printed_by("mcp_agent.py", base_url, mcp_url, question)
        return answer

    running.reset()
    names: dict[str, Any] = {"run_my_agent": run_my_agent}
    exec(EXAMPLES[0], names)
    names["test_the_agent_reports_a_tool_that_fails"](running)
    [failed, successful] = running.mcp.calls("get_weather")
    assert (failed.fault, successful.result) == ("error", "sunny")


@pytest.mark.clients
@pytest.mark.coding_agents
@pytest.mark.timeout(180)
def test_claude_code_calls_a_tool_of_the_mcp_server(tmp_path: Path) -> None:
    tool = "mcp__weather__get_weather"
    call = {"name": tool, "arguments": {"city": "Rome"}}
    prompt = (
        f'claude -p "Weather?" --mcp-config mcp.json --strict-mcp-config --allowed-tools {tool}'
    )
    page_section = section("Claude Code")
    page_section.commands[-1] = f"ENABLE_TOOL_SEARCH=false {prompt}"
    with vllm_understudy.running_server(
        served_model_name="understudy", max_model_len=262_144
    ) as understudy:
        understudy.mcp.python = str(CLIENTS_PYTHON)
        understudy.mcp.tool("get_weather", "sunny", description="The weather of a city.")
        understudy.reply({"tool_result": tool}, then={"text": "It is {{ tool_result }}."})
        understudy.reply({"tools": tool}, then={"tool_calls": [call]})
        make_folder(page_section, tmp_path, understudy.port)
        exec(EXAMPLES[2], {"json": json, "folder": tmp_path, "understudy": understudy})
        output = run_agent("claude", page_section, tmp_path, understudy.port)
        understudy.mcp.assert_called("get_weather", times=1, when={"city": "Rome"})
    assert "It is sunny." in output


def test_documented_mcp_fault_example_runs_without_an_error() -> None:
    with vllm_understudy.running_mcp_server() as mcp:
        mcp.tool("get_weather", "sunny")
        exec(EXAMPLES[1].replace("understudy.mcp", "mcp"), {"mcp": mcp})
