"""From the messages of a request to the conversation that a chat template expects.

The rules are vLLM's (facts of 0.32): templates that walk over parts get lists of parts, the others get one
string; tool call arguments become objects; a developer is a system voice to templates that lack the role.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from jinja2 import nodes

from app.tokenization.base import ChatTemplateError, Message

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
"""Type of a part that is text -> the field that holds it."""

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
"""Type of a part that is not text -> its modality."""
FIELDS = (
    *("image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"),
    *("audio_url", "input_audio", "video_url", "tool_reference"),
)
"""Fields that tell the type of a part without `type`, or with a `uuid`, the first one that is there."""
SIMPLE_FIELDS = ("uuid", "image_url", "audio_url", "video_url")
"""Fields that may hold a text or null, whatever the type of the part."""
EMBEDDINGS = ("image_embeds", "audio_embeds", "video_embeds")
SOUND_FORMATS = ("wav", "mp3")
STRICT_TEXT = ("text", "refusal", "thinking")

ADDRESSED = ("image_url", "audio_url", "video_url")
"""Types of parts that must have a URL, unless the part has a `uuid` by which the medium is known."""
KEPT_FIELDS = ("name", "task")
PLAIN_ROLES = ("system", "user", "assistant")
"""Whose messages of role and text become themselves."""
OPENAI_ROLES = (*PLAIN_ROLES, "developer", "tool")
OWN_FIELDS = ("reasoning", "task", "tools", "tool_calls")
"""Fields of a message that vLLM has and OpenAI has not, or only with calls inside."""


def parse_messages(
    messages: Sequence[Message], content_format: ContentFormat, takes_media: bool = True
) -> Conversation:
    """Return dicts in the shape that templates expect; the request's own objects stay as they are.

    No template can change what it is given, so a message that has this shape stands for itself.

    Raises:
        ChatTemplateError: no message at all, a part of an unknown type, a medium for a model that takes none,
            a tool call that is no function call.
    """
    if not messages:
        raise ChatTemplateError("A chat needs at least one message: there is nothing to render.")
    return [_parse_message(message, content_format, takes_media) for message in messages]


def developer_as_system(conversation: Conversation) -> Conversation:
    """Return the conversation with developers as system, merged into one system message at the front."""
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


def _parse_message(message: Message, content_format: ContentFormat, takes_media: bool) -> dict[str, object]:
    role = message["role"]
    content = message.get("content")
    if type(content) is str and len(message) == 2 and role in PLAIN_ROLES:
        if content_format == "string" and isinstance(message, dict):
            return message
        return {"role": role, "content": content if content_format == "string" else [_text_part(content)]}
    parts = [content] if isinstance(content, str) else content or []
    if not isinstance(parts, list):
        raise ChatTemplateError("The content of a message must be a string, a list of parts or null.")
    if parts and not isinstance(content, str) and _is_openai(message) and not any(map(_is_known, parts)):
        raise ChatTemplateError("None of the parts of a message's content has a form that is known.")
    parsed: dict[str, object] = {
        "role": role,
        "content": _parse_content(parts, content_format, takes_media),
    }
    if role == "assistant":
        parsed |= _assistant_fields(message)
    elif role == "tool":
        if isinstance(parsed["content"], list) and all(part["type"] == "text" for part in parsed["content"]):
            parsed["content"] = _joined_text(parsed["content"])
        if "tool_call_id" in message:
            parsed["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        parsed["tools"] = message.get("tools")
    return parsed | {key: message[key] for key in KEPT_FIELDS if isinstance(message.get(key), str)}


def _is_openai(message: Message) -> bool:
    """True for a message of OpenAI's kinds, whose parts vLLM reads strictly unless it knows one of them."""
    role = message["role"]
    if role not in OPENAI_ROLES or any(field in message for field in OWN_FIELDS):
        return False
    return (role == "tool") == ("tool_call_id" in message)


def _is_known(part: object) -> bool:
    """True for a part with a field that vLLM's types know, in its right form."""
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
    return kind == "file" and isinstance(value, dict) or kind in STRICT_TEXT and isinstance(value, str)


def _parse_content(
    parts: Iterable[object], content_format: ContentFormat, takes_media: bool
) -> str | list[Part]:
    parse = partial(_parse_part, takes_media=takes_media)
    parsed = [part for part in map(parse, parts) if part is not None]
    if content_format == "openai":
        return parsed
    # Media have no text of their own: a placeholder each, before the text, as vLLM does without interleaving.
    media = [f"<{part['type']}>" for part in parsed if "text" not in part and "name" not in part]
    texts = [part.get("text") or part.get("name") for part in parsed]
    return "\n".join([*media, *(text for text in texts if text)])


def _parse_part(part: object, takes_media: bool) -> Part | None:
    """Return a part as templates know it, or None for a text part without text."""
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
        return _text_of(part, kind)
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")}
    if kind == "prompt_embeds":
        raise ChatTemplateError("Prompts as embeddings are not enabled.", kind)
    if kind not in MODALITIES:
        known = ", ".join(sorted([*TEXT_FIELDS, *MODALITIES, "prompt_embeds", "tool_reference"]))
        raise ChatTemplateError(f"Unsupported chat content part type: {kind!r}, not one of {known}.", "type")
    if kind in ADDRESSED and not by_field:
        _check_address(part.get(kind), kind)
    if not takes_media:
        raise ChatTemplateError("The served model is not a multimodal model: it reads text alone.")
    return {"type": MODALITIES[kind]}


def _text_of(part: Mapping[str, object], kind: str) -> Part | None:
    text = part.get(TEXT_FIELDS[kind])
    if text is None:
        return None
    if not isinstance(text, str):
        raise ChatTemplateError(f"A part of type {kind!r} needs its {TEXT_FIELDS[kind]}, a string.")
    return _text_part(text)


def _check_address(address: object, kind: str) -> None:
    if not isinstance(address, dict) or not isinstance(address.get("url"), str):
        raise ChatTemplateError(f"A part of type {kind!r} needs {kind}.url, a string.")


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _assistant_fields(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {}
    calls = message.get("tool_calls")
    if calls and isinstance(calls, list):
        fields["tool_calls"] = [_parse_tool_call(call) for call in calls]
    if (reasoning := message.get("reasoning")) is not None:
        # Templates know it by the older name too.
        fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return fields


def _parse_tool_call(call: object) -> dict[str, object]:
    if isinstance(call, dict) and call.get("type", "function") == "function":
        function = call.get("function")
        if isinstance(function, dict):
            return {
                **call,
                "function": {**function, "arguments": _parse_arguments(function.get("arguments"))},
            }
    raise ChatTemplateError("Each of an assistant's tool_calls must be an object of type 'function'.")


def _parse_arguments(arguments: object) -> dict[str, object]:
    """Arguments that are no JSON object become an empty one: history must not block the next turn."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, dict) else {}


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Return "openai" (a list of parts) for a template that loops over a message's content, else "string".

    Nothing in a template says so; vLLM looks whether it loops over a message's content, and so do we: follow
    `messages` through assignments to the loop over it, then `message.content` through macro arguments to a
    `for`.
    """
    messages = _aliases(template, "messages")
    message: set[str] = set()
    for loop in template.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in messages):
            message.add(loop.target.name)
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
        by_name = isinstance(loop.iter, nodes.Name) and loop.iter.name == "content" and loop not in in_macros
        if by_name or any(_reads(loop.iter, name, "content") for name in message):
            yield loop


def _content_parameters(template: nodes.Template, macro: nodes.Macro, message: set[str]) -> set[str]:
    """Return the parameters of `macro` that some call fills with a message's content."""
    names = [argument.name for argument in macro.args]
    bound = set()
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            named = [(pair.key, pair.value) for pair in call.kwargs]
            for name, value in [*zip(names, call.args, strict=False), *named]:
                if any(_reads(value, each, "content") for each in message):
                    bound.add(name)
    return bound


def _aliases(template: nodes.Template, name: str) -> set[str]:
    """Return `name` and every variable that is assigned from it, at any distance."""
    found, fresh = {name}, [name]
    while fresh:
        source = fresh.pop()
        for assignment in template.find_all(nodes.Assign):
            target = assignment.target
            if not isinstance(target, nodes.Name) or target.name in found:
                continue
            if _reads(assignment.node, source):
                found.add(target.name)
                fresh.append(target.name)
    return found


def _reads(node: nodes.Node | None, name: str, field: str | None = None) -> bool:
    """Returns True when `node` is the variable (or its field), perhaps filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, field)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, field)
    if field is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == field
    return isinstance(node, nodes.Getattr) and node.attr == field and _reads(node.node, name)
