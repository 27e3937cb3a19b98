"""From the messages of a request to a prompt, and to what mode `echo` repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from app.api.builder import Prompt
from app.api.chat.media import features
from app.api.frontend import Frontend
from app.clock.pause import Slices
from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject, slices
from app.protocol.messages import Message
from app.protocol.tokenize import TokenizeChatRequest
from app.tokenization import ChatOptions

PROMPT = 50
"""Values that a short prompt counts as that is made tokens."""
TOOL = 15
"""Values that a tool counts as that is made a dict."""


def chat_prompt(frontend: Frontend, request: ChatCompletionRequest, messages: Sequence[Message]) -> Prompt:
    """The conversation as tokens. ApiError 400 when it cannot be rendered, or exceeds the context.

    Pauses while it looks at many messages.
    """
    within = slices()
    turns: list[tuple[str, str]] = []
    composed: list[Message] = []
    for message in messages:
        content = message.get("content")
        if type(content) is str:
            text = content
        else:
            text = content_text(content, within)
            composed.append(message)
        frontend.check_text(text)
        if frontend.keeps_turns:
            turns.append((str(message["role"]), text))
        within.spend()
    ids = frontend.fit(request, frontend.tokenizer.encode_chat(messages, chat_options(request)))
    return Prompt(ids, last_message_text(messages), tuple(turns), features(composed, ids))


def chat_prompts(
    frontend: Frontend, request: ChatCompletionRequest, conversations: Sequence[Sequence[Message]]
) -> list[Prompt]:
    """Every conversation as tokens, with pauses in between. ApiError as `chat_prompt`."""
    within = slices()
    prompts = []
    for messages in conversations:
        prompts.append(chat_prompt(frontend, request, messages))
        within.spend(PROMPT)
    return prompts


def chat_options(asked: ChatCompletionRequest | TokenizeChatRequest) -> ChatOptions:
    """How the chat template is to be applied. ApiError 400 for a template of the request's own."""
    if asked.chat_template is not None or "chat_template" in (asked.chat_template_kwargs or ()):
        raise bad_request("A chat template in the request is not trusted here.")
    return ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=asked.add_special_tokens,
        tools=None if asked.tools is None else _as_dicts(asked.tools),
        documents=getattr(asked, "documents", None),
        chat_template_kwargs=asked.chat_template_kwargs,
    )


def _as_dicts(tools: Sequence[msgspec.Struct]) -> list[JsonObject]:
    within = slices()
    dicts = []
    for tool in tools:
        dicts.append(msgspec.to_builtins(tool))
        within.spend(TOOL)
    return dicts


def last_message_text(messages: Sequence[Message]) -> str:
    """The text of the last message, whatever its role, with its tool calls (simulator.md 5.2)."""
    if not messages:
        return ""
    last, within = messages[-1], slices()
    calls = last.get("tool_calls")
    said = [_call_text(call, within) for call in calls] if isinstance(calls, list) else ()
    return content_text(last.get("content"), within) + "".join(said)


def _call_text(call: Mapping[str, object], within: Slices) -> str:
    within.spend()
    function = call.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        return ""
    return f"[{function.get('name')}({function.get('arguments')})]"


def content_text(content: object, within: Slices | None = None) -> str:
    """Text parts as they are and images as `image: URL`, joined by line breaks; other parts are silent."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | dict):
        return ""
    within = within or slices()
    texts = []
    for part in content:
        text = _part_text(part)
        if text is not None:
            texts.append(text)
        within.spend()
    return "\n".join(texts)


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    if part.get("type") == "image_url":
        image = part.get("image_url")
        return f"image: {image.get('url') if isinstance(image, dict) else image}"
    text = part.get("text")
    return text if isinstance(text, str) else None
