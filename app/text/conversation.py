"""Converts the messages of a request to the conversation that a chat template expects.

The rules are vLLM's (facts of 0.32). Templates that loop over parts get lists of parts, other
templates get one string. Arguments of tool calls become objects. Developer messages become system
messages for templates that lack the role.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jinja2 import nodes

from app.text.base import ChatTemplateError, Message

ContentFormat = Literal["string", "openai"]
Part: TypeAlias = dict[str, Any]
Conversation: TypeAlias = list[dict[str, Any]]

TEXT_FIELDS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Type of a text part -> field of the text."""

MODALITIES: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "image_pil": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""Type of a media part -> modality."""
FIELDS = (
    *("image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"),
    *("audio_url", "input_audio", "video_url", "tool_reference"),
)
"""Fields that determine the type of a part without `type`, or with a `uuid`; the first match wins.
"""
SIMPLE_FIELDS = ("uuid", "image_url", "audio_url", "video_url")
"""Fields that may hold a text or null in a part of any type."""
EMBEDDINGS = ("image_embeds", "audio_embeds", "video_embeds")
SOUND_FORMATS = ("wav", "mp3")
STRICT_TEXT = ("text", "refusal", "thinking")

ADDRESSED = ("image_url", "audio_url", "video_url")
"""Types of parts that need a URL, unless a `uuid` identifies the medium."""
KEPT_FIELDS = ("name", "task")
PLAIN_ROLES = ("system", "user", "assistant")
"""Roles whose messages stay unchanged if they hold only role and text."""
OPENAI_ROLES = (*PLAIN_ROLES, "developer", "tool")
OWN_FIELDS = ("reasoning", "task", "tools", "tool_calls")
"""Fields of vLLM's messages beyond OpenAI's; `tool_calls` because OpenAI requires calls inside."""


def parse_messages(
    messages: Sequence[Message], content_format: ContentFormat, takes_media: bool = True
) -> Conversation:
    """Returns dicts in the form that templates expect; those that have it are the request's own
    objects.

    ChatTemplateError for no messages, an unknown part, media for a text model, or a call that is
    none.
    """
    if not messages:
        raise ChatTemplateError("A chat needs at least one message: there is nothing to render.")
    return [_parse_message(message, content_format, takes_media) for message in messages]


def developer_as_system(conversation: Conversation) -> Conversation:
    """Returns the conversation with developers as system, merged into one system message at the
    front.
    """
    if all(message["role"] != "developer" for message in conversation):
        return conversation
    renamed = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in conversation
    ]
    if all(message["role"] != "system" for message in renamed[1:]):
        return renamed
    texts = [_joined_text(message["content"]) for message in renamed if message["role"] == "system"]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _joined_text(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _parse_message(
    message: Message, content_format: ContentFormat, takes_media: bool
) -> dict[str, object]:
    role = message["role"]
    content = message.get("content")
    if type(content) is str and len(message) == 2 and role in PLAIN_ROLES:
        if content_format == "string" and isinstance(message, dict):
            return message
        return {
            "role": role,
            "content": content if content_format == "string" else [_text_part(content)],
        }
    parts = [content] if isinstance(content, str) else content or []
    if not isinstance(parts, list):
        raise ChatTemplateError(
            "The content of a message must be a string, a list of parts or null."
        )
    # vLLM requires one known part at least in a message of OpenAI's kinds.
    is_openai = role in OPENAI_ROLES and (role == "tool") == ("tool_call_id" in message)
    is_openai = is_openai and not any(field in message for field in OWN_FIELDS)
    if parts and not isinstance(content, str) and is_openai and not any(map(_is_known, parts)):
        raise ChatTemplateError(
            "None of the parts of a message's content has a form that is known."
        )
    parsed: dict[str, object] = {
        "role": role,
        "content": _parse_content(parts, content_format, takes_media),
    }
    if role == "assistant":
        calls, reasoning = message.get("tool_calls"), message.get("reasoning")
        if calls and isinstance(calls, list):
            parsed["tool_calls"] = [_parse_tool_call(call) for call in calls]
        if reasoning is not None:  # templates may read the older name, too
            parsed |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool":
        if isinstance(parsed["content"], list) and all(
            part["type"] == "text" for part in parsed["content"]
        ):
            parsed["content"] = _joined_text(parsed["content"])
        if "tool_call_id" in message:
            parsed["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        parsed["tools"] = message.get("tools")
    return parsed | {key: message[key] for key in KEPT_FIELDS if isinstance(message.get(key), str)}


def _is_known(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    value = part.get(kind) if isinstance(kind, str) else None
    if any(isinstance(part.get(field, 0), str | None) for field in SIMPLE_FIELDS):
        return True
    if kind in ADDRESSED:
        return isinstance(value, dict) and isinstance(value.get("url"), str)
    if kind == "input_audio":
        return isinstance(value, dict) and value.get("format") in SOUND_FORMATS
    if kind in EMBEDDINGS:
        return isinstance(value, str | dict | None)
    if kind is None and "type" not in part or kind == "tool_reference":
        return isinstance(part.get("name", kind), str)
    if kind == "prompt_embeds":
        return isinstance(part.get("data"), str)
    return (
        kind == "file" and isinstance(value, dict) or kind in STRICT_TEXT and isinstance(value, str)
    )


def _parse_content(
    parts: Iterable[object], content_format: ContentFormat, takes_media: bool
) -> str | list[Part]:
    parsed = [found for part in parts if (found := _parse_part(part, takes_media)) is not None]
    if content_format == "openai":
        return parsed
    # Each medium becomes a placeholder before the text, as in vLLM without interleaving.
    media = [f"<{part['type']}>" for part in parsed if "text" not in part and "name" not in part]
    texts = [part.get("text") or part.get("name") for part in parsed]
    return "\n".join([*media, *(text for text in texts if text)])


def _parse_part(part: object, takes_media: bool) -> Part | None:
    if isinstance(part, str):
        return _text_part(part)
    if not isinstance(part, dict):
        raise ChatTemplateError("A part of a message's content must be a string or an object.")
    kind = part.get("type")
    by_field = kind is None or part.get("uuid") is not None
    if by_field:
        kind = next((field for field in FIELDS if field in part), None)
    if not isinstance(kind, str):
        raise ChatTemplateError("A part of a message's content needs its type, a string.", "type")
    if kind in TEXT_FIELDS:
        text = part.get(TEXT_FIELDS[kind])
        if text is not None and not isinstance(text, str):
            raise ChatTemplateError(
                f"A part of type {kind!r} needs its {TEXT_FIELDS[kind]}, a string."
            )
        return None if text is None else _text_part(text)
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")}
    if kind == "prompt_embeds":
        raise ChatTemplateError("Prompts as embeddings are not enabled.", kind)
    if kind not in MODALITIES:
        known = ", ".join(sorted([*TEXT_FIELDS, *MODALITIES, "prompt_embeds", "tool_reference"]))
        raise ChatTemplateError(
            f"Unsupported chat content part type: {kind!r}, not one of {known}.", "type"
        )
    if kind in ADDRESSED and not by_field:
        address = part.get(kind)
        if not isinstance(address, dict) or not isinstance(address.get("url"), str):
            raise ChatTemplateError(f"A part of type {kind!r} needs {kind}.url, a string.")
    if not takes_media:
        raise ChatTemplateError("The served model is not a multimodal model: it reads text alone.")
    return {"type": MODALITIES[kind]}


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _parse_tool_call(call: object) -> dict[str, object]:
    """Returns the call with its arguments as an object.

    Invalid arguments become an empty object, as history must not block the next turn.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(call, dict)
        or call.get("type", "function") != "function"
        or type(function) is not dict
    ):
        raise ChatTemplateError(
            "Each of an assistant's tool_calls must be an object of type 'function'."
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}},
    }


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Returns "openai" (a list of parts) for a template that loops over a message's content, else
    "string".

    As vLLM: from `messages` through assignments to a loop, then `message.content` through macros to
    a `for`.
    """
    messages, fresh = set[str](), {"messages"}
    while fresh:
        messages |= fresh
        read = [
            it
            for it in template.find_all(nodes.Assign)
            if any(_reads(it.node, n) for n in messages)
        ]
        fresh = {it.target.name for it in read if isinstance(it.target, nodes.Name)} - messages
    loops = [
        it for it in template.find_all(nodes.For) if any(_reads(it.iter, name) for name in messages)
    ]
    message = {loop.target.name for loop in loops if isinstance(loop.target, nodes.Name)}
    return "openai" if any(_content_loops(template, message)) else "string"


def _content_loops(template: nodes.Template, message: set[str]) -> Iterator[nodes.For]:
    in_macros: set[nodes.For] = set()
    for macro in template.find_all(nodes.Macro):
        bound = _content_parameters(template, macro, message)
        for loop in macro.find_all(nodes.For):
            in_macros.add(loop)
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in bound:
                yield loop
    for loop in template.find_all(nodes.For):
        by_name = (
            isinstance(loop.iter, nodes.Name)
            and loop.iter.name == "content"
            and loop not in in_macros
        )
        if by_name or any(_reads(loop.iter, name, "content") for name in message):
            yield loop


def _content_parameters(
    template: nodes.Template, macro: nodes.Macro, message: set[str]
) -> set[str]:
    names = [argument.name for argument in macro.args]
    bound = set()
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            named = [(pair.key, pair.value) for pair in call.kwargs]
            for name, value in [*zip(names, call.args, strict=False), *named]:
                if any(_reads(value, each, "content") for each in message):
                    bound.add(name)
    return bound


def _reads(node: nodes.Node | None, name: str, field: str | None = None) -> bool:
    """Returns True when `node` is the variable or its field, possibly filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, field)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, field)
    if field is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return (
            _reads(node.node, name)
            and isinstance(node.arg, nodes.Const)
            and node.arg.value == field
        )
    return isinstance(node, nodes.Getattr) and node.attr == field and _reads(node.node, name)


def surrounds_content(template: nodes.Template) -> bool:
    """Returns True for a template that prints the content of messages as it is, and never else
    reads content.

    Then the text around the content of a single message depends on its role alone.
    """
    blocks = nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block
    autoescape = nodes.EvalContextModifier
    loops = [loop for loop in template.find_all(nodes.For) if _reads(loop.iter, "messages")]
    names = {loop.target.name for loop in loops if isinstance(loop.target, nodes.Name)}
    if any(template.find_all((*blocks, autoescape))) or len(loops) != 1 or len(names) != 1:
        return False
    printed = [node for output in template.find_all(nodes.Output) for node in output.nodes]
    understood = 1 + isinstance(loops[0].iter, nodes.Name)  # where the loop names both
    reads: list[nodes.Getattr | nodes.Getitem] = [*template.find_all(nodes.Getattr)]
    reads += template.find_all(nodes.Getitem)
    for node in reads:
        key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        if isinstance(node.node, nodes.Name) and node.node.name in names and isinstance(key, str):
            is_known = key != "content" or any(node is each for each in printed)
            understood += is_known and not hasattr(
                dict, key
            )  # `get` and `items` may read the content
    names.add("messages")
    return understood == sum(each.name in names for each in template.find_all(nodes.Name))
