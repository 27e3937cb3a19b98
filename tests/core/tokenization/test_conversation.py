"""Messages of a request become what a chat template expects."""

import json
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import pytest
from jinja2 import Environment

from app.core.text.base import ChatTemplateError
from app.core.text.chat_template import ChatTemplates
from app.core.text.conversation import (
    MODALITIES,
    ContentFormat,
    developer_as_system,
    parse_messages,
)
from app.core.text.template_analysis import detect_content_format

TEXT = {"type": "text", "text": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def message_of(content: object, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": content}


def content(value: object, content_format: ContentFormat = "string", role: str = "user") -> object:
    return parse_messages([message_of(value, role)], content_format)[0]["content"]


SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
TELL = {"type": "output_text", "text": "b"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"), (None, ""), (["a", TEXT, TELL], "a\nhi\nb"),
        ([{"image_url": "x"}], "<image>"),
        ([{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}], "no\nhm"),
        ([TEXT, IMAGE, SOUND], "<image>\n<audio>\nhi"),  # media are placeholders before the text
        *(([TEXT, {"type": kind}], "hi") for kind in ("text", "refusal", "input_text", "thinking")),
    ],
)  # fmt: skip
def test_content_parts_are_joined_by_newlines_for_string_templates(
    value: object, text: str
) -> None:
    assert content(value) == text


def test_content_parts_are_kept_for_templates_that_loop_over_them() -> None:
    assert content("a", "openai") == [{"type": "text", "text": "a"}]
    assert content(None, "openai") == []
    assert content([IMAGE, TELL], "openai") == [{"type": "image"}, {"type": "text", "text": "b"}]
    assert content([{"type": "text", "text": "7"}], "openai", role="tool") == "7"


def named(call: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("message", "words", "param"),
    [
        *((message_of(value), "string, a list of parts, or null", None)
            for value in (7, {"text": "x"}, True)),
        *((message_of([part]), ".", ...) for part in ({"type": "smell"}, 7, None, {"type": {},
            "image_url": {"url": "x"}})),
        *((message_of([TEXT, {"type": kind}]), ".", "type") for kind in ("file", "zzz", 5, "")),
        *((message_of([TEXT, part]), ".", "type") for part in ({}, TEXT | {"uuid": "u"},
        {"type": "image_url", "uuid": "u"})),
        (message_of([TEXT, {"type": "prompt_embeds", "data": "AA=="}]), ".", "prompt_embeds"),
        (message_of([TEXT, {"type": "text", "text": 5}]), "must contain text as a string", ...),
        *((message_of([TEXT, {"type": "image_url", "image_url": url}]), "image_url.url", None)
            for url in ("x", {"url": 5})),
        *((named(call), "function", ...) for call in ("f", {"type": "custom", "function": {}},
        {"type": "function"})),
    ],
)  # fmt: skip
def test_error_for_an_invalid_message_has_the_param_of_vllm(
    message: dict[str, object], words: str, param: object
) -> None:
    with pytest.raises(ChatTemplateError, match=words) as caught:
        parse_messages([message], "string")
    assert param is ... or caught.value.param == param


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ({"a": 1}, {"a": 1}),
        *((text, {}) for text in ("", None, "{broken", "[1]", 3)),
    ],
)
def test_tool_call_arguments_are_parsed_into_an_object(arguments: object, parsed: object) -> None:
    message = named(
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    )
    text_before = json.dumps(message)
    (result,) = parse_messages([message], "string")
    assert result["tool_calls"][0]["function"] == {"name": "f", "arguments": parsed}
    assert json.dumps(message) == text_before, "the request's own objects are left alone"
    assert "tool_calls" not in parse_messages([message_of("x") | {"tool_calls": []}], "string")[0]


def test_parsed_messages_keep_names_tool_call_ids_and_reasoning() -> None:
    thought = {"role": "assistant", "content": "b", "reasoning": "because"}
    messages = [
        message_of("a") | {"name": "Ann"},
        thought,
        {"role": "tool", "content": "c", "tool_call_id": "7"},
    ]
    expected = [messages[0], thought | {"reasoning_content": "because"}, messages[2]]
    assert parse_messages([messages[0] | {"other": 1}, *messages[1:]], "string") == expected


def test_developer_messages_become_one_leading_system_message() -> None:
    messages = [{"role": role, "content": role} for role in ("system", "user", "developer")]
    system = {"role": "system", "content": "system\n\ndeveloper"}
    assert developer_as_system(parse_messages(messages, "string")) == [system, messages[1]]
    alone = parse_messages([{"role": "developer", "content": "d", "tools": []}], "string")
    assert developer_as_system(alone) == [{"role": "system", "content": "d"}]


EACH = "{% for m in messages %}BODY{% endfor %}"
LOOP = "{% for p in m.content %}{{ p }}{% endfor %}"
MACRO = "{% macro show(NAME) %}{% for p in NAME %}{{ p }}{% endfor %}{% endmacro %}"
SHOW = MACRO.replace("NAME", "body")


def template_for_each(body: str) -> str:
    return EACH.replace("BODY", body)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (template_for_each("{{ m.content }}"), "string"),
        (template_for_each("{% for part in m['content'] %}{{ part }}{% endfor %}"), "openai"),
        (template_for_each("{% for part in m.content | list %}{% endfor %}"), "openai"),
        (
            "{% set rest = messages[1:] %}" + template_for_each(LOOP).replace("messages", "rest"),
            "openai",
        ),
        (
            template_for_each("{% set content = m.content %}{% for p in content %}{% endfor %}"),
            "openai",
        ),
        (SHOW + template_for_each("{{ show(m.content) }}"), "openai"),
        (SHOW + template_for_each("{{ show(body=m['content'] | list) }}"), "openai"),
        (
            MACRO.replace("NAME", "content") + template_for_each("{{ show(m.tool_calls) }}"),
            "string",
        ),
        (template_for_each("{% for call in m.tool_calls %}{{ m.content }}{% endfor %}"), "string"),
        ("{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}", "string"),
        (
            "{% set a = b %}{% set b = messages %}"
            + template_for_each(LOOP).replace("messages", "a"),
            "openai",
        ),
    ],
)
def test_content_format_is_detected_from_loops_in_the_template(source: str, expected: str) -> None:
    assert detect_content_format(Environment().parse(source)) == expected


@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
@pytest.mark.parametrize("address", [None, "http://a/b.png", {"url": None}])
def test_media_part_without_a_url_is_rejected(kind: str, address: object) -> None:
    part = {"type": kind, kind: address}
    with pytest.raises(ChatTemplateError, match=f"{kind}.url"):
        parse_messages([{"role": "user", "content": [TEXT, part]}], "openai")
    with pytest.raises(ChatTemplateError):
        parse_messages([{"role": "user", "content": [{"type": kind}]}], "string")
    parsed = parse_messages([{"role": "user", "content": [part | {"uuid": "a"}]}], "openai")
    assert parsed[0]["content"] == [{"type": kind.partition("_")[0]}]


STRANGE = {"type": "input_text", "text": "b"}
"""A part that vLLM takes only beside one that its types know, and from other roles than OpenAI's.
"""


@pytest.mark.parametrize(
    ("part", "is_known"),
    [
        *(
            (part, False)
            for part in ("a", STRANGE, {"type": "output_text", "text": "b"}, {"text": "a"}, {})
        ),
        *(
            (part, False)
            for part in ({"type": "text"}, {"image_url": {"url": "x"}}, {"type": "image_pil"})
        ),
        ({"type": "input_audio", "input_audio": {"data": "A", "format": "xyz"}}, False),
        ({**STRANGE, "name": "n"}, False),
        *((part, True) for part in (TEXT, IMAGE, {"image_url": "x"}, {"type": "image_embeds"})),
        *(({"type": kind, kind: "x"}, True) for kind in ("refusal", "thinking")),
    ],
)
@pytest.mark.parametrize("role", ["user", "developer"])
def test_message_without_any_known_content_part_is_rejected(
    role: str, part: object, is_known: bool
) -> None:
    refusal = pytest.raises(ChatTemplateError, match="contains only parts of unknown types")
    with nullcontext() if is_known else refusal:
        content([part], role=role)
    assert content([STRANGE, TEXT, "c"], role=role) == "b\nhi\nc"
    assert content([STRANGE, "c"], role="critic") == "b\nc"
    assert parse_messages([{"role": role, "content": [STRANGE], "reasoning": "r"}], "string")


@pytest.mark.parametrize("kind", [*MODALITIES, None])
def test_text_model_rejects_media(kind: str | None) -> None:
    name = kind or "image_url"
    part = {"type": kind, name: {"url": "x"} if name.endswith("_url") else "x"}
    messages = [message_of([TEXT, part])]
    with pytest.raises(ChatTemplateError, match="is not a multimodal model") as caught:
        parse_messages(messages, "string", takes_media=False)
    assert caught.value.param is None
    assert parse_messages(messages, "string")


def test_keys_of_a_message_have_one_order() -> None:
    messages = [
        MappingProxyType({"content": "hi", "role": "user"}),
        {"tools": [], "name": "Ann", "content": "hi", "role": "developer"},
    ]
    parsed = parse_messages(messages, "string")
    assert [list(message) for message in parsed] == [
        ["role", "content"],
        ["role", "content", "name", "tools"],
    ]


def test_parts_keep_unknown_fields() -> None:
    part = {"cached": {"b": 1}, "text": "a", "closed": True, "type": "input_text", "more": 2}
    media = {"image_url": {"url": "x"}, "type": "image_url", "more": 1}
    [message] = parse_messages([message_of([part, media])], "openai")
    assert [list(part.items()) for part in message["content"]] == [
        [("type", "text"), ("text", "a"), ("cached", {"b": 1}), ("more", 2)],
        [("type", "image"), ("more", 1)],
    ]


HEADER = "x-anthropic-billing-header: cch=1;"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (HEADER, ""),
        (f"{HEADER}\nBe brief.", "Be brief."),
        (f" {HEADER}\nBe brief.", f" {HEADER}\nBe brief."),
        ([{"type": "text", "text": HEADER}, {"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": f"{HEADER}\nb"}, {"type": "text", "text": "a"}], "b\na"),
        ([f"{HEADER}\nb", {"type": "text", "text": "a"}], "b\na"),
    ],
)
def test_changing_header_of_a_system_message_is_dropped(content: Any, text: str) -> None:
    messages = [{"role": "system", "content": content}, {"role": "user", "content": HEADER}]
    parsed = parse_messages(messages, "string")
    assert [message["content"] for message in parsed] == [text, HEADER]
    wrapped = ChatTemplates({"default": "{{ messages[0].content }}"}, {})
    assert wrapped.render(messages[:1]) == text
