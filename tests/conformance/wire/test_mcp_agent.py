"""docs/mcp.md: one test plays the model and the tools of an agent of openai-agents."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

import vllm_understudy
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
def test_the_example_of_the_page_passes(running: vllm_understudy.Server) -> None:
    def run_my_agent(base_url: str, mcp_url: str, question: str) -> str:
        answer: str = printed_by("mcp_agent.py", base_url, mcp_url, question)
        return answer

    running.reset()
    names: dict[str, Any] = {"run_my_agent": run_my_agent}
    exec(EXAMPLES[0], names)
    names["test_the_agent_reports_a_tool_that_fails"](running)
    [failed, successful] = running.mcp.calls("get_weather")
    assert (failed.fault, successful.result) == ("error", "sunny")


def test_the_faults_of_the_page_are_accepted() -> None:
    with vllm_understudy.running_mcp_server() as mcp:
        mcp.tool("get_weather", "sunny")
        exec(EXAMPLES[1].replace("understudy.mcp", "mcp"), {"mcp": mcp})
