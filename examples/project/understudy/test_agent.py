"""An agent with one tool: `run_agent` stands for your agent, put that in its place."""

import json
import urllib.request
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("replies.yaml"))
TOOL = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def run_agent(base_url, question):
    """Asks the model, calls the tools that it wants, and returns its answer."""
    messages = [{"role": "user", "content": question}]
    while True:
        body = {"messages": messages, "tools": [{"type": "function", "function": TOOL}]}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{base_url}/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            message = json.load(answer)["choices"][0]["message"]
        if not message.get("tool_calls"):
            return message["content"]
        messages.append(message)
        for call in message["tool_calls"]:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})


def test_the_agent_calls_the_tool(understudy):
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    understudy.reply({"tool_result": False}, then={"tool_calls": [call]})
    understudy.reply(
        {"tool_result": "get_weather"}, then={"text": "In Rome it is {{ tool_result }}."}
    )
    assert run_agent(understudy.base_url, "Is it warm in Rome?") == "In Rome it is sunny."
    first, second = understudy.assert_called(times=2, contains="Rome")
    assert second.request["messages"][-1]["content"] == "sunny"


@pytest.mark.understudy(script=SCRIPT)
def test_the_script_calls_the_tool(understudy):
    assert run_agent(understudy.base_url, "Is it warm in Oslo?") == "It is sunny."
    assert [entry.rule is None for entry in understudy.requests()] == [False, False]
