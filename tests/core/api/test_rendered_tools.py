"""Tools as chat templates print them."""

import gevent
import pytest

from app.core.api.chat.tool_set import tool_set
from app.core.base.clock import pause
from app.core.protocol.options import FunctionDefinition, Tool
from tests.client import Client

START = '{"type": "function", "function": {"name": "f", "description": null, "parameters": null'


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "}}"),
        ({"strict": None, "defer_loading": None}, "}}"),
        ({"strict": False}, ', "strict": false}}'),
        ({"defer_loading": True}, ', "defer_loading": true}}'),
    ],
)
def test_null_tool_fields_are_rendered_only_where_vllm_renders_them(
    client: Client, fields: dict[str, bool | None], end: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", **fields}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    tokens = client.post("/tokenize", body).json()["tokens"]
    prompt = client.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert START + end + "\n" in prompt


@pytest.mark.parametrize("own", [None, False])
def test_deferred_tool_marks_its_function_unless_the_function_says_otherwise(
    client: Client, own: bool | None
) -> None:
    function = {"name": "f", "defer_loading": own}
    tool = {"defer_loading": True, "function": function, "type": "function"}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    tokens = client.post("/tokenize", body).json()["tokens"]
    prompt = client.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    mark = "true" if own is None else "false"
    assert START + f', "defer_loading": {mark}}}, "defer_loading": true}}\n' in prompt


def test_empty_tool_list_renders_the_same_prompt_as_no_tools(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    without_tools = client.post("/tokenize", body).json()["tokens"]
    assert client.post("/tokenize", {**body, "tools": []}).json()["tokens"] == without_tools


def test_other_requests_run_before_the_tools_of_the_first_request_are_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    tools = [Tool(function=FunctionDefinition(name="f"))]
    gevent.spawn(tool_set, tools).get()
    assert len(pauses) == 1
