"""What mode `echo` repeats of a conversation, and how a template is to be applied."""

from __future__ import annotations

from typing import Any

import pytest

from app.serving.api.chat.prompt import chat_options, content_text, last_message_text
from app.serving.api.pipeline import ChatRules
from app.serving.http.errors import ApiError
from app.serving.protocol.chat import ChatCompletionRequest


def test_the_text_of_a_content_is_repeated_with_tool_calls_behind_it() -> None:
    contents: list[tuple[Any, str]] = [
        *((None, ""), ("", ""), ("Hello", "Hello"), ([], "")),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}], "image: http://x/y.png"),
        ([{"type": "image_url", "image_url": "http://x/y.png"}], "image: http://x/y.png"),
        ([{"type": "input_audio", "input_audio": {}}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "text", "text": None}], ""),
    ]
    for content, text in contents:
        assert content_text(content) == text
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "last"}]
    assert last_message_text(messages) == "last" and last_message_text([]) == ""
    functions = [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{}"}, None]
    calls = [*({"function": function} for function in functions), {}]
    told = last_message_text([{"role": "assistant", "content": "so:", "tool_calls": calls}])
    assert told == 'so:[f({"x": 1})][g({})]'


def request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], **fields)


def test_options_are_the_request_s() -> None:
    given = {"deep": True, "chat_template": None}
    options = chat_options(request(add_generation_prompt=False, chat_template_kwargs=given), ChatRules())
    assert options.add_generation_prompt is False
    assert options.chat_template_kwargs == given
    assert options.tools is None and options.chat_template is None


def test_a_template_of_the_request_s_own_is_not_trusted() -> None:
    own = "{{ 1 }}"
    for fields in ({"chat_template": own}, {"chat_template_kwargs": {"chat_template": own}}):
        with pytest.raises(ApiError) as caught:
            chat_options(request(**fields), ChatRules())
        assert caught.value.status == 400
