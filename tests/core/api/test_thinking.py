"""Whether a model thinks, by its reasoning parser and what the request says of it."""

from typing import Any

import pytest

from app.core.api.chat.thinking import thinking
from app.core.protocol.chat import ChatCompletionRequest

OFF = {"enable_thinking": False}
ON = {"enable_thinking": True}
THINKING_OFF = {"thinking": False}


@pytest.mark.parametrize(
    ("parser", "kwargs", "effort", "expected"),
    [
        ("", {}, None, "no"),
        ("qwen3", {}, None, "first"),
        ("qwen3", OFF, None, "no"),
        ("qwen3", {}, "none", "no"),
        ("qwen3", {}, "low", "first"),
        ("qwen3", ON, "none", "first"),
        ("deepseek_r1", {}, None, "first"),
        ("deepseek_r1", OFF, None, "all"),
        ("deepseek_v3", {}, None, "no"),
        ("deepseek_v3", {"thinking": True}, None, "first"),
        ("gemma4", ON, None, "first"),
        ("kimi_k2", THINKING_OFF, None, "no"),
        ("deepseek_v4", ON, "none", "no"),
        ("kimi_k3", {"thinking": False, "enable_thinking": True}, None, "no"),
        ("hy_v3", OFF, "high", "first"),
        ("hy_v4", {"reasoning_effort": "no_think"}, None, "no"),
    ],
)
def test_reasoning_depends_on_the_parser_template_arguments_and_effort(
    parser: str, kwargs: dict[str, Any], effort: Any, expected: str
) -> None:
    chat = ChatCompletionRequest(
        messages=[], chat_template_kwargs=kwargs or None, reasoning_effort=effort
    )
    assert thinking(chat, parser, {}) == expected


def test_request_fields_override_the_template_arguments_of_the_server() -> None:
    chat = ChatCompletionRequest(messages=[])
    assert thinking(chat, "qwen3", OFF) == "no"
    chat.reasoning_effort = "low"
    assert thinking(chat, "qwen3", OFF) == "first"
    chat.chat_template_kwargs = OFF
    assert thinking(chat, "qwen3", ON) == "no"
