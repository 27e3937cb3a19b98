"""From the messages of a request to the conversation that a chat template expects.

The rules are vLLM's (facts of 0.32): templates that walk over parts get lists of parts, the others get one
string; tool call arguments become objects; a developer is a system voice to templates that lack the role.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.tokenization.base import ChatTemplateError, Message
from app.tokenization.content_format import ContentFormat

Conversation = list[dict[str, Any]]

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
"""Type of a part that is not text -> its modality. Without `type`, a field of that name tells it."""

KEPT_FIELDS = ("name", "task")


def parse_messages(messages: Sequence[Message], content_format: ContentFormat) -> Conversation:
    """Return new dicts in the shape that templates expect; the request's own objects stay as they are.

    Raises:
        ChatTemplateError: no message at all, a part of an unknown type, a tool call that is no function call.
    """
    if not messages:
        raise ChatTemplateError("A chat needs at least one message: there is nothing to render.")
    return [_parse_message(message, content_format) for message in messages]


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


def _joined_text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _parse_message(message: Message, content_format: ContentFormat) -> dict[str, Any]:
    role = message["role"]
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content or []
    if not isinstance(parts, list):
        raise ChatTemplateError("The content of a message must be a string, a list of parts or null.")
    parsed: dict[str, Any] = {"role": role, "content": _parse_content(parts, content_format)}
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


def _parse_content(parts: Iterable[Any], content_format: ContentFormat) -> str | list[dict[str, Any]]:
    parsed = [part for part in map(_parse_part, parts) if part is not None]
    if content_format == "openai":
        return parsed
    # Media have no text of their own: a placeholder each, before the text, as vLLM does without interleaving.
    media = [f"<{part['type']}>" for part in parsed if "text" not in part and "name" not in part]
    texts = [part.get("text") or part.get("name") for part in parsed]
    return "\n".join([*media, *(text for text in texts if text)])


def _parse_part(part: Any) -> dict[str, Any] | None:
    """Return a part as templates know it, or None for a text part without text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise ChatTemplateError("A part of a message's content must be a string or an object.")
    kind = str(part.get("type") or next((field for field in MODALITIES if field in part), None))
    if kind in TEXT_FIELDS:
        text = part.get(TEXT_FIELDS[kind])
        return None if text is None else {"type": "text", "text": str(text)}
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")}
    if kind in MODALITIES:
        return {"type": MODALITIES[kind]}
    known = ", ".join(sorted([*TEXT_FIELDS, *MODALITIES, "tool_reference"]))
    raise ChatTemplateError(f"Content part type {kind!r} is not one of: {known}.")


def _assistant_fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    calls = message.get("tool_calls")
    if calls and isinstance(calls, list):
        fields["tool_calls"] = [_parse_tool_call(call) for call in calls]
    if (reasoning := message.get("reasoning")) is not None:
        # Templates know it by the older name too.
        fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return fields


def _parse_tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise ChatTemplateError("Each of an assistant's tool_calls must be an object of type 'function'.")
    return {**call, "function": {**function, "arguments": _parse_arguments(function.get("arguments"))}}


def _parse_arguments(arguments: Any) -> dict[str, Any]:
    """Arguments that are no JSON object become an empty one: history must not block the next turn."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, dict) else {}
