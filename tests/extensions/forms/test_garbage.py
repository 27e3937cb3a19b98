"""Requests leave no cyclic garbage behind."""

# A server imports this module in a thread; its classes make garbage.
from app.extensions.forms.schema import draw  # noqa: F401
from tests.core.engine.test_garbage import CHAT, MESSAGES, check_garbage

FUNCTION = {
    "name": "look",
    "parameters": {"type": "object", "properties": {"a": {"type": "array"}}},
}


def test_request_with_tools_leaves_no_cyclic_garbage() -> None:
    tools = [{"function": FUNCTION}]
    body = {"messages": MESSAGES, "tools": tools, "tool_choice": "required"}
    check_garbage(CHAT, body, "200")
