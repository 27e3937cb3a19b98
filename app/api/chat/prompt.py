"""From the messages of a request to a prompt, and to what mode `echo` repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.tokenize import TokenizeChatRequest
from app.tokenization import ChatOptions


def chat_options(asked: ChatCompletionRequest | TokenizeChatRequest) -> ChatOptions:
    """How the chat template is to be applied. ApiError 400 for a template of the request's own."""
    if asked.chat_template is not None or "chat_template" in (asked.chat_template_kwargs or ()):
        raise bad_request("A chat template in the request is not trusted here.")
    tools = None if asked.tools is None else [msgspec.to_builtins(tool) for tool in asked.tools]
    return ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=asked.add_special_tokens,
        tools=tools,
        documents=getattr(asked, "documents", None),
        chat_template_kwargs=asked.chat_template_kwargs,
    )


def last_message_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message, whatever its role, with its tool calls (simulator.md 5.2)."""
    if not messages:
        return ""
    last = messages[-1]
    calls = [call.get("function") or {} for call in last.get("tool_calls") or ()]
    told = [f"[{call.get('name')}({call.get('arguments')})]" for call in calls if call.get("name")]
    return content_text(last.get("content")) + "".join(told)


def content_text(content: Any) -> str:
    """Text parts as they are and images as `image: URL`, joined by line breaks; other parts are silent."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(told for part in content if (told := _part_text(part)) is not None)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    if part.get("type") == "image_url":
        image = part.get("image_url")
        return f"image: {image.get('url') if isinstance(image, dict) else image}"
    text = part.get("text")
    return text if isinstance(text, str) else None
