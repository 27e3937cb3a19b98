"""What mode `echo` repeats of a conversation, and how a template is to be applied."""

from __future__ import annotations

from typing import Any

from app.serving.api.chat.prompt import content_text, last_message_text


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
