"""Tools and choices among them are taken and repeated as OpenAI's SDK does it, whose types vLLM uses."""

from typing import Any

import pytest
from openai.types.responses.response import ToolChoice
from openai.types.responses.tool import Tool
from pydantic import TypeAdapter

from app.serving.protocol.coercion import Misfit
from app.serving.protocol.response_tools import convert_tool_choice, convert_tools

TOOLS: TypeAdapter[Any] = TypeAdapter(Tool)
CHOICES: TypeAdapter[Any] = TypeAdapter(ToolChoice)
SECRETS = [{"domain": "d", "name": "n", "value": "v"}]
ALLOWLIST = {"type": "allowlist", "allowed_domains": ["a"], "domain_secrets": SECRETS}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
GIVEN = [
    FUNCTION,
    {**FUNCTION, "strict": "yes", "allowed_callers": ["direct"], "async": True, "cache_control": {"a": 1}},
    {"type": "web_search", "filters": {"allowed_domains": ["a"]}, "user_location": {"city": "a"}},
    {"type": "web_search_2025_08_26", "search_context_size": "low"},
    {"type": "mcp", "server_label": "l", "require_approval": {"always": {"tool_names": ["x"]}}},
    {"type": "code_interpreter", "container": {"type": "auto", "network_policy": ALLOWLIST}},
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]},
]
CHOSEN = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "f", "more": 1},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    {"type": "mcp", "server_label": "l"},
    {"type": "shell"},
    {"type": "computer_use"},
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given["type"])
def test_a_tool_is_repeated_with_all_its_fields_or_refused_as_by_the_sdk(given: dict[str, Any]) -> None:
    wrong = [{**given, key: value} for key in given for value in (None, 5, "x", [], {}, [5], {"type": "x"})]
    for tool in (given, *wrong):
        try:
            expected = TOOLS.validate_python(tool).model_dump(mode="json", by_alias=True)
        except ValueError:
            with pytest.raises(Misfit) as caught:
                convert_tools([tool])
            assert tool is not given and caught.value.path[:2] == (0, "FunctionTool")
            continue
        (told,) = convert_tools([tool])
        assert tool is not given or list(told.items()) == list(expected.items())


def test_a_tool_of_another_type_is_repeated_as_it_is_given() -> None:
    given = [{"type": "shell", "environment": 5}, {"type": "file_search"}]
    assert convert_tools(given) == given


@pytest.mark.parametrize("given", CHOSEN, ids=lambda given: given["type"])
def test_a_choice_is_repeated_with_all_its_fields(given: dict[str, Any]) -> None:
    expected = CHOICES.validate_python(given).model_dump(mode="json", by_alias=True)
    assert list(convert_tool_choice(given).items()) == list(expected.items())
