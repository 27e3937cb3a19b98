"""Converts the messages of a request to the conversation that a chat template expects.

The rules match vLLM 0.32. Templates that loop over parts get lists of parts, other
templates get one string. Arguments of tool calls become objects. Developer messages become system
messages for templates that lack the role.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from app.core.base.clock.pause import paced
from app.core.base.nested_json import decode_nested
from app.core.text.base import ChatTemplateError, Message
from config.untrusted import UntrustedDataError

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
PART_TYPES = ", ".join(sorted([*TEXT_FIELDS, *MODALITIES, "prompt_embeds", "tool_reference"]))
"""All types, for an error message."""
TYPE_FIELDS = (
    "image_url",
    "image_pil",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "audio_url",
    "input_audio",
    "video_url",
    "tool_reference",
)
"""Fields that determine the type of a part without `type`, or with a `uuid`; the first one wins."""
SIMPLE_FIELDS = ("uuid", "image_url", "audio_url", "video_url")
"""Fields that may hold a text or null in a part of any type."""
EMBEDDINGS = ("image_embeds", "audio_embeds", "video_embeds")
SOUND_FORMATS = ("wav", "mp3")
STRICT_TEXT_TYPES = ("text", "refusal", "thinking")
URL_TYPES = ("image_url", "audio_url", "video_url")
"""Types of parts that need a URL, unless a `uuid` identifies the medium."""
PART_FIELDS = frozenset(
    (
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil"),
        *("image_url", "input_audio", "name", "prompt_cache_breakpoint", "refusal", "text"),
        *("thinking", "type", "uuid", "video_embeds", "video_url"),
    )
)
"""Fields of all types of parts in vLLM; templates also get the other fields of a part."""
COPIED_FIELDS = ("name", "task")
PLAIN_ROLES = ("system", "user", "assistant")
"""Roles whose messages stay unchanged if they hold only role and text."""
OPENAI_ROLES = (*PLAIN_ROLES, "developer", "tool")
BILLING_HEADER = "x-anthropic-billing-header"
"""Start of a line in system texts that is dropped.

The line of Claude Code differs in each request, so no prefix would be found in the cache.
"""
VLLM_FIELDS = ("reasoning", "task", "tools", "tool_calls")
"""Fields of vLLM's messages beyond OpenAI's; `tool_calls` because OpenAI requires calls inside."""


def parse_messages(
    messages: Sequence[Message], content_format: ContentFormat, takes_media: bool = True
) -> Conversation:
    """Returns dicts in the form that templates expect, with their keys in vLLM's order.

    Raises:
        ChatTemplateError: there are no messages, a part is unknown or has media for a text model,
            or a tool call is invalid.
    """
    if not messages:
        raise ChatTemplateError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    return [_parse_message(message, content_format, takes_media) for message in paced(messages)]


def developer_as_system(conversation: Conversation) -> Conversation:
    """Returns the conversation with developer messages as system messages.

    Several system messages are merged into one at the front.
    """
    if all(message["role"] != "developer" for message in conversation):
        return conversation
    renamed = []
    for message in conversation:
        if message["role"] == "developer":
            message = {key: value for key, value in message.items() if key != "tools"}
            message["role"] = "system"
        renamed.append(message)
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
    if role == "system":
        content = _without_billing_header(content)
    if type(content) is str and len(message) == 2 and role in PLAIN_ROLES:
        if content_format == "openai":
            return {"role": role, "content": [_text_part(content)]}
        return {"role": role, "content": content}
    parts = [content] if isinstance(content, str) else _checked_parts(message, content or [])
    parsed: dict[str, object] = {
        "role": role,
        "content": _parse_content(parts, content_format, takes_media),
    }
    if role == "assistant":
        _add_assistant_fields(parsed, message)
    elif role == "tool":
        _add_tool_fields(parsed, message)
    for field in COPIED_FIELDS:
        if isinstance(message.get(field), str):
            parsed[field] = message[field]
    if role == "developer":
        parsed["tools"] = message.get("tools")
    return parsed


def _checked_parts(message: Message, parts: object) -> list[object]:
    """Requires a list, which in a message of OpenAI's kinds has a known part, as in vLLM."""
    if not isinstance(parts, list):
        raise ChatTemplateError(
            "The content of a message must be a string, a list of parts, or null."
        )
    if parts and _is_openai_message(message) and not any(map(_is_known_part, parts)):
        raise ChatTemplateError("The message's content contains only parts of unknown types.")
    return parts


def starts_with_billing_header(text: str) -> bool:
    """Returns true for a system text whose first line is dropped."""
    return text.startswith(BILLING_HEADER)


def _without_billing_header(content: object) -> object:
    """Returns the content of a system message without header lines; a part may get lost."""
    if isinstance(content, str):
        if not starts_with_billing_header(content):
            return content
        return content.partition("\n")[2] or []
    if not isinstance(content, list):
        return content
    parts: list[object] = []
    for part in content:
        is_text_part = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text_part else part
        if isinstance(text, str) and starts_with_billing_header(text):
            text = text.partition("\n")[2]
            if not text:
                continue
            part = {**part, "text": text} if is_text_part else text
        parts.append(part)
    return parts


def _is_openai_message(message: Message) -> bool:
    role = message["role"]
    if role not in OPENAI_ROLES or (role == "tool") != ("tool_call_id" in message):
        return False
    return not any(field in message for field in VLLM_FIELDS)


def _add_assistant_fields(parsed: dict[str, object], message: Message) -> None:
    calls = message.get("tool_calls")
    if calls and isinstance(calls, list):
        parsed["tool_calls"] = [_parse_tool_call(call) for call in paced(calls)]
    reasoning = message.get("reasoning")
    if reasoning is not None:
        parsed["reasoning"] = reasoning
        parsed["reasoning_content"] = reasoning  # the older name, which templates may read


def _add_tool_fields(parsed: dict[str, object], message: Message) -> None:
    content = parsed["content"]
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        parsed["content"] = _joined_text(content)
    if "tool_call_id" in message:
        parsed["tool_call_id"] = message["tool_call_id"]


def _is_known_part(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    value = part.get(kind) if isinstance(kind, str) else None
    if any(isinstance(part.get(field, 0), str | None) for field in SIMPLE_FIELDS):
        return True
    if kind in URL_TYPES:
        return isinstance(value, dict) and isinstance(value.get("url"), str)
    if kind == "input_audio":
        return isinstance(value, dict) and value.get("format") in SOUND_FORMATS
    if kind in EMBEDDINGS:
        return isinstance(value, str | dict | None)
    if kind is None and "type" not in part or kind == "tool_reference":
        return isinstance(part.get("name", kind), str)
    if kind == "prompt_embeds":
        return isinstance(part.get("data"), str)
    if kind == "file":
        return isinstance(value, dict)
    return kind in STRICT_TEXT_TYPES and isinstance(value, str)


def _parse_content(
    parts: Iterable[object], content_format: ContentFormat, takes_media: bool
) -> str | list[Part]:
    parsed: list[Part] = []
    for part in parts:
        parsed_part = _parse_part(part, takes_media)
        if parsed_part is not None:
            parsed.append(parsed_part)
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
        raise ChatTemplateError("Each part of a message's content must be a string or an object.")
    has_type = part.get("type") is not None and part.get("uuid") is None
    kind = part["type"] if has_type else next(filter(part.__contains__, TYPE_FIELDS), None)
    if not isinstance(kind, str):
        raise ChatTemplateError(
            "In each part of a message's content, the type must be a string.", "type"
        )
    if kind in TEXT_FIELDS:
        return _parse_text_part(part, kind)
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")}
    if kind == "prompt_embeds":
        raise ChatTemplateError("Prompt embeddings are not enabled.", kind)
    if kind not in MODALITIES:
        raise ChatTemplateError(
            f"Unsupported chat content part type: {kind!r}. Supported types: {PART_TYPES}.",
            "type",
            kind,
        )
    if has_type:
        _check_url(part, kind)
    if not takes_media:
        raise ChatTemplateError("The served model is not a multimodal model: it accepts only text.")
    return {"type": MODALITIES[kind], **_unknown_fields(part)}


def _parse_text_part(part: Part, kind: str) -> Part | None:
    field = TEXT_FIELDS[kind]
    text = part.get(field)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ChatTemplateError(f"A part of type {kind!r} must contain {field} as a string.")
    if len(part) == 2:
        return _text_part(text)
    return {"type": "text", "text": text, **_unknown_fields(part)}


def _check_url(part: Part, kind: str) -> None:
    if kind not in URL_TYPES:
        return
    address = part.get(kind)
    if not isinstance(address, dict) or not isinstance(address.get("url"), str):
        raise ChatTemplateError(f"A part of type {kind!r} must contain {kind}.url as a string.")


def _unknown_fields(part: Part) -> Part:
    return {key: value for key, value in part.items() if key not in PART_FIELDS}


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
            arguments = decode_nested(arguments)
        except UntrustedDataError:
            arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}
