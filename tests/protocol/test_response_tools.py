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
SKILL = {
    "type": "inline",
    "description": "d",
    "name": "n",
    "source": {"type": "base64", "data": "d", "media_type": "application/zip"},
}
ALLOWLIST = {
    "type": "allowlist",
    "allowed_domains": ["a"],
    "domain_secrets": [{"domain": "d", "name": "n", "value": "v"}],
}
EQUAL = {"type": "eq", "key": "k", "value": ["v", 1]}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
GIVEN = [
    FUNCTION,
    {**FUNCTION, "strict": "yes", "allowed_callers": ["direct"], "async": True, "cache_control": {"a": 1}},
    {
        "type": "file_search",
        "vector_store_ids": ["a"],
        "filters": EQUAL,
        "ranking_options": {"ranker": "auto"},
    },
    {"type": "file_search", "vector_store_ids": [], "filters": {"type": "and", "filters": [EQUAL, 1]}},
    {"type": "computer"},
    {"type": "computer_use_preview", "display_height": "1", "display_width": 2, "environment": "mac"},
    {"type": "web_search", "filters": {"allowed_domains": ["a"]}, "user_location": {"city": "a"}},
    {"type": "web_search_2025_08_26", "search_context_size": "low"},
    {
        "type": "web_search_preview",
        "user_location": {"type": "approximate"},
        "search_content_types": ["text"],
    },
    {"type": "mcp", "server_label": "l", "allowed_tools": ["a"], "require_approval": "never"},
    {
        "type": "mcp",
        "server_label": "l",
        "require_approval": {"always": {"tool_names": ["x"]}},
        "headers": {"a": "b"},
    },
    {"type": "code_interpreter", "container": "c"},
    {"type": "code_interpreter", "container": {"type": "auto", "network_policy": ALLOWLIST}},
    {"type": "programmatic_tool_calling"},
    {
        "type": "image_generation",
        "input_image_mask": {"file_id": "a"},
        "svg": {"reasoning": {"effort": "low"}},
    },
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "container_auto", "skills": [SKILL]}},
    {
        "type": "shell",
        "environment": {"type": "local", "skills": [{"description": "d", "name": "n", "path": "p"}]},
    },
    {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {
        "type": "namespace",
        "name": "n",
        "description": "d",
        "tools": [FUNCTION, {"type": "custom", "name": "c"}],
    },
    {"type": "tool_search", "execution": "server", "parameters": {"a": 1}},
    {"type": "apply_patch"},
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
def test_a_tool_is_repeated_with_all_its_fields(given: dict[str, Any]) -> None:
    expected = TOOLS.validate_python(given).model_dump(mode="json", by_alias=True)
    (told,) = convert_tools([given])
    assert told == expected
    assert list(told) == list(expected)


@pytest.mark.parametrize("given", CHOSEN, ids=lambda given: given["type"])
def test_a_choice_is_repeated_with_all_its_fields(given: dict[str, Any]) -> None:
    expected = CHOICES.validate_python(given).model_dump(mode="json", by_alias=True)
    told = convert_tool_choice(given)
    assert told == expected
    assert list(told) == list(expected)


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given["type"])
def test_what_the_sdk_refuses_of_a_tool_is_refused(given: dict[str, Any]) -> None:
    for key in given:
        for value in (None, 5, "x", [], {}, [5], {"type": "x"}):
            tool = {**given, key: value}
            try:
                TOOLS.validate_python(tool)
            except ValueError:
                with pytest.raises(Misfit) as caught:
                    convert_tools([tool])
                assert caught.value.path[:2] == (0, "FunctionTool")
            else:
                convert_tools([tool])
