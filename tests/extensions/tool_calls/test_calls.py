"""Which arguments a call has that its message says nothing about."""

import json
from typing import Any

import pytest

from tests.application import app_of

USERS = {
    "type": "object",
    "properties": {
        "users": {
            "type": "array",
            "items": {"type": "object", "properties": {"name": {"type": "string"}}},
        }
    },
}
NAMED = {"type": "function", "function": {"name": "save_users"}}


@pytest.mark.parametrize("number", range(8))
def test_arguments_of_a_named_tool_choice_contain_no_empty_list_or_object(number: int) -> None:
    """Client libraries ask for structured output in this way."""
    application = app_of("--seed", "1", "--enable-auto-tool-choice")
    tool = {"type": "function", "function": {"name": "save_users", "parameters": USERS}}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Name the people of group {number}."}],
        "tools": [tool],
        "tool_choice": NAMED,
    }
    answer = application.test_client().post("/v1/chat/completions", json=body).get_json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    users = json.loads(call["function"]["arguments"])["users"]
    assert users and all(users)


def test_argument_from_a_message_is_replaced_only_if_it_is_invalid() -> None:
    application = app_of("--seed", "1", "--enable-auto-tool-choice")
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer", "maximum": 7},
        "hours": {"type": "integer", "maximum": 7},
        "wind": {"type": "boolean"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["city", "days"]}
    function = {"name": "get_weather", "parameters": parameters}
    message = 'get_weather(city="Rome", days=90, hours=80, wind=false)'
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": message}],
        "tools": [{"type": "function", "function": function}],
    }
    answer = application.test_client().post("/v1/chat/completions", json=body).get_json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.pop("days") <= 7
    assert arguments == {"city": "Rome", "wind": False}
