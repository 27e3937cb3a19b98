"""Agents by rules that the test sets: those of README's examples, and of three tools."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

import vllm_understudy
from tests.conformance.clients import openai_client, printed_by, told_by
from tests.conformance.weather_agents import AGENTS
from tests.conformance.wire.test_anthropic_sdk import sdk
from tests.running_server import ROOT

EXAMPLES = {
    page: re.findall(r"```python\n(def test_the_agent.*?)```", (ROOT / page).read_text(), re.DOTALL)
    for page in ("README.md", "docs/testing.md")
}
REQUESTS = {"README.md": 3, "docs/testing.md": 2}
"""Requests of each example; the first one of README's fails."""
ELSEWHERE = {"openai_agents"}
"""Agents whose packages are in an environment of their own."""
SCRIPT = ROOT / "examples" / "scripts" / "dinner.yaml"
QUESTION = "Dinner in the capital of Italy, please."
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("find_capital", {"country": "Italy"}),
    ("get_weather", {"city": "Rome"}),
    ("book_table", {"city": "Rome", "outside": True}),
]
RESULTS = {"find_capital": "Rome", "get_weather": "Rome: sun", "book_table": "20:00"}
ANSWER = "Your table: 20:00."
SCHEMA = {"type": "object", "additionalProperties": True}
MOST_TURNS = 6
Told = tuple[list[tuple[str, Any]], str]


@pytest.fixture(scope="module")
def running() -> Iterator[vllm_understudy.Server]:
    with vllm_understudy.running_server(model="tiny", enable_responses_store=True) as server:
        yield server


@pytest.mark.parametrize("page", EXAMPLES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.clients] * (name in ELSEWHERE)) for name in AGENTS],
)
def test_documented_agent_test_passes_for_every_framework(
    page: str, name: str, running: vllm_understudy.Server
) -> None:
    def run_my_agent(base_url: str, question: str) -> str | None:
        if name not in ELSEWHERE:
            return AGENTS[name](base_url, question)
        answer: str = printed_by("weather_agents.py", name, base_url, question)
        return answer

    running.reset()
    [example] = EXAMPLES[page]
    names: dict[str, Any] = {"run_my_agent": run_my_agent}
    exec(example, names)
    [test] = [named for key, named in names.items() if key.startswith("test_")]
    test(running)
    rules = [str(entry.rule)[:24] for entry in running.requests()]
    assert rules == ["script at run time: rule"] * REQUESTS[page]


@pytest.fixture
def server(running: vllm_understudy.Server) -> vllm_understudy.Server:
    running.reset()
    running.ask("PUT", "/admin/script/rules", yaml.safe_load(SCRIPT.read_text()))
    return running


def over_responses(server: vllm_understudy.Server, keeps: bool = False, **fields: Any) -> Told:
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in RESULTS]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    called: list[tuple[str, Any]] = []
    with openai_client(server, strict=False) as client:
        for _ in range(MOST_TURNS):
            response = client.responses.create(model="tiny", input=items, tools=tools, **fields)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return called, response.output_text
            called += [(call.name, json.loads(call.arguments)) for call in calls]
            results = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": RESULTS[call.name],
                }
                for call in calls
            ]
            if keeps:
                items, fields["previous_response_id"] = results, response.id
            else:
                items += [item.model_dump(exclude_none=True) for item in response.output] + results
    raise AssertionError("the agent never ended")


def over_messages(server: vllm_understudy.Server) -> Told:
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in RESULTS]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    called: list[tuple[str, Any]] = []
    with sdk(server) as client:
        for _ in range(MOST_TURNS):
            message = client.messages.create(
                model="tiny", max_tokens=16_384, messages=messages, tools=tools
            )
            messages.append({"role": "assistant", "content": message.content})
            uses = [block for block in message.content if block.type == "tool_use"]
            if not uses:
                return called, "".join(
                    block.text for block in message.content if block.type == "text"
                )
            called += [(use.name, use.input) for use in uses]
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": RESULTS[use.name]}
                for use in uses
            ]
            messages.append({"role": "user", "content": results})
    raise AssertionError("the agent never ended")


@pytest.mark.parametrize(
    "ask",
    [
        over_messages,
        over_responses,
        lambda server: over_responses(server, keeps=True),
        lambda server: over_responses(server, tool_choice="required"),
    ],
    ids=["messages", "responses", "stored responses", "required"],
)
def test_agent_calls_the_scripted_tools_before_the_scripted_answer(
    server: vllm_understudy.Server, ask: Callable[[vllm_understudy.Server], Told]
) -> None:
    assert ask(server) == (CALLS, ANSWER)
    first, *_, last = server.assert_called(times=len(CALLS) + 1)
    assert QUESTION in str(first.request) and RESULTS["book_table"] in str(last.request)
    assert last.text == ANSWER and all(entry.rule for entry in (first, last))


@pytest.mark.clients
def test_openai_agents_sdk_calls_three_tools(server: vllm_understudy.Server) -> None:
    runs = told_by("openai_agents_client.py", server)
    assert len(runs) == 4
    for run in runs.values():
        assert run == {
            "calls": [[name, *arguments.values()] for name, arguments in CALLS],
            "answer": ANSWER,
        }
    server.assert_called(times=len(runs) * (len(CALLS) + 1))
