"""The text of a conversation that mode `echo` repeats."""

from typing import Any

from app.core.api.chat.prompt import content_text, text_with_calls

DATA_URL = "data:image/png;base64,AAAA"


def test_tool_calls_of_a_message_are_appended_to_its_text() -> None:
    contents: list[tuple[Any, str]] = [
        *((None, ""), ("", ""), ("Hello", "Hello"), ([], "")),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}], "image: http://x/y.png"),
        ([{"type": "image_url", "image_url": "http://x/y.png"}], "image: http://x/y.png"),
        ([{"type": "image_url", "image_url": {"url": DATA_URL}}], "image: data:image/png;base64,"),
        (
            [{"type": "image_url", "image_url": "DATA:image/png;base64,AA"}],
            "image: DATA:image/png;base64,",
        ),
        ([{"type": "input_audio", "input_audio": {}}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "text", "text": None}], ""),
    ]
    for content, text in contents:
        assert content_text(content) == text
    assert text_with_calls({"role": "assistant", "content": "last"}) == "last"
    functions = [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{}"}, None]
    calls = [*({"function": function} for function in functions), {}]
    marked_up = text_with_calls({"role": "assistant", "content": "so:", "tool_calls": calls})
    assert marked_up == 'so:[f({"x": 1})][g({})]'
