"""Turns the messages of a request into a prompt, and into the text that mode `echo` repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from app.base.clock.pause import Slices
from app.serving.api.builder import Prompt
from app.serving.api.chat.media import features
from app.serving.api.chat.thinking import template_kwargs
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.http.errors import bad_request
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.messages import Message, content_text
from app.serving.protocol.options import Tool
from app.serving.protocol.tokenize import TokenizeChatRequest
from app.text import PLAIN_CHAT, ChatOptions


def chat_prompt(
    pipeline: RequestPipeline, request: ChatCompletionRequest, messages: Sequence[Message]
) -> Prompt:
    """Returns the conversation as tokens. ApiError 400 when it cannot be rendered or exceeds the context.

    Pauses between many messages.
    """
    turns: list[tuple[str, str]] = []
    composed: list[Message] = []
    for message in messages:
        content = message.get("content")
        if type(content) is str:
            text = content
        else:
            text = content_text(content)
            composed.append(message)
        pipeline.check_text(text)
        if pipeline.keeps_turns:
            turns.append((str(message["role"]), text))
    options = chat_options(request, pipeline.chat_rules)
    ids: Sequence[int] | None = forwarded_ids(pipeline, request, composed)
    if ids is None:
        ids = pipeline.fit(request, pipeline.tokenizer.encode_chat(messages, options))
    media = features(composed, ids) if composed else None
    return Prompt(ids, last_message_text(messages), tuple(turns), media)


FORWARDED = "prompt_token_ids"


def forwarded_ids(
    pipeline: RequestPipeline, request: ChatCompletionRequest, composed: Sequence[Message]
) -> list[int] | None:
    """Returns the prompt's tokens from the prefill side; None where the messages have to be rendered.

    `composed` are the messages that are more than a text. ApiError 400 for an invalid prompt.
    """
    ids = (request.kv_transfer_params or {}).pop(FORWARDED, None)
    if ids is None or request.echo or composed and features(composed, (0,)):
        return None
    param = f"kv_transfer_params.{FORWARDED}"
    if not isinstance(ids, list) or not ids or any(type(each) is not int or each < 0 for each in ids):
        raise bad_request(f"{param} must be a list of token ids that is not empty", param)
    pipeline.limits.check_vocabulary(param, ids)
    return ids


def chat_prompts(
    pipeline: RequestPipeline, request: ChatCompletionRequest, conversations: Sequence[Sequence[Message]]
) -> list[Prompt]:
    """Returns every conversation as tokens, with pauses in between. Raises ApiError like `chat_prompt`."""
    return [chat_prompt(pipeline, request, messages) for messages in conversations]


TOOLS_AT_ONCE = 1_000
"""Tools converted to dicts between two pauses: about 2 ms."""


class BringsTemplate(Protocol):
    """A request that may bring a chat template."""

    chat_template: str | None
    chat_template_kwargs: JsonObject | None


def own_template(asked: BringsTemplate, rules: ChatRules) -> str | None:
    """Returns the request's chat template, if any. ApiError 400 where requests may not bring one."""
    kwargs = asked.chat_template_kwargs or {}
    if not rules.trusts_templates and (
        asked.chat_template is not None or kwargs.get("chat_template") is not None
    ):
        raise bad_request("A chat template in the request needs --trust-request-chat-template.")
    return asked.chat_template or None


def chat_options(asked: ChatCompletionRequest | TokenizeChatRequest, rules: ChatRules) -> ChatOptions:
    """Returns the options of the chat template. Raises ApiError like `own_template`."""
    template, kwargs = own_template(asked, rules), template_kwargs(asked, rules.template_kwargs)
    wanted = asked.tools
    if rules.hides_unused_tools and getattr(asked, "tool_choice", None) == "none":
        wanted = None
    documents = getattr(asked, "documents", None)
    special = asked.continue_final_message or asked.add_special_tokens or not asked.add_generation_prompt
    if not (special or template or wanted or kwargs or documents):
        return PLAIN_CHAT
    return ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=asked.add_special_tokens,
        tools=None if wanted is None else list(_tool_dicts(wanted)),
        documents=documents,
        chat_template=template,
        chat_template_kwargs=kwargs,
    )


def _tool_dicts(tools: Sequence[Tool]) -> Iterator[Mapping[str, object]]:
    """Yields tools as a template sees them, with pauses when they are many."""
    slices = Slices(TOOLS_AT_ONCE)
    for tool in tools:
        yield msgspec.to_builtins(tool)
        slices.spend()


def last_message_text(messages: Sequence[Message]) -> str:
    """The text of the last message, whatever its role, with its tool calls (simulator.md 5.2)."""
    if not messages:
        return ""
    last = messages[-1]
    text, calls = content_text(last.get("content")), last.get("tool_calls")
    if not isinstance(calls, list):
        return text
    return text + "".join(_call_text(call) for call in calls)


def _call_text(call: object) -> str:
    """Formats an assistant's call; empty for unchecked values of other roles."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not function.get("name"):
        return ""
    return f"[{function.get('name')}({function.get('arguments')})]"
