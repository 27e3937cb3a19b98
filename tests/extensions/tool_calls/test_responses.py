"""Calls in constrained texts, as clients of the Responses API get them."""

from tests.client import Client, events
from tests.extensions.tool_calls.test_reader import PING


def test_response_contains_all_tool_calls(hermes: Client) -> None:
    tools = [{"type": "function", "name": "ping", "parameters": {"type": "object"}}]
    body = {"input": "hi", "tools": tools, "structured_outputs": {"choice": [PING * 2]}}
    output = hermes.post("/v1/responses", body).json()["output"]
    assert [(item["type"], item["name"], item["arguments"]) for item in output] == [
        ("function_call", "ping", "{}")
    ] * 2
    single = hermes.post("/v1/responses", body | {"parallel_tool_calls": False}).json()["output"]
    assert len(single) == 1


def test_streamed_response_contains_the_tool_calls(hermes: Client) -> None:
    tools = [{"type": "function", "name": "ping", "parameters": {"type": "object"}}]
    choice = {"structured_outputs": {"choice": [f"Sure. {PING}"]}, "stream": True}
    body = {"input": "hi", "tools": tools, **choice}
    done = events(hermes.post("/v1/responses", body))[-1]["response"]["output"]
    assert [item["type"] for item in done] == ["message", "function_call"]
