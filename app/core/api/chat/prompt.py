"""Messages of a request as a prompt, and as the text that mode `echo` repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.api.chat.media import BuiltPrompt
from app.core.api.chat.thinking import template_kwargs
from app.core.protocol.chat import ChatCompletionRequest, Message, content_text
from app.core.protocol.coercion import JsonObject
from app.core.protocol.validation import fit_prompt
from app.core.server.http.errors import bad_request
from app.core.text.base import PLAIN_CHAT, ChatOptions, KeptTokens

if TYPE_CHECKING:
    from app.core.api.chat.rules import ChatRules
    from app.core.api.chat.tool_set import KnownTools
    from app.core.api.pipeline import RequestPipeline
    from app.core.protocol.tokenize import TokenizeChatRequest

FORWARDED_IDS = "prompt_token_ids"
"""Key of `kv_transfer_params` with the prompt's tokens from the prefill side."""


def chat_prompt(
    pipeline: RequestPipeline,
    request: ChatCompletionRequest,
    messages: Sequence[Message],
    *,
    renders_only: bool = False,
) -> BuiltPrompt:
    """Returns the conversation as tokens; with `renders_only`, no reply follows. May pause.

    Raises:
        ApiError: 400 when it does not render or fit.
    """
    composed: list[Message] = []
    """Messages with parts."""
    text = ""
    for message in messages:
        content = message.get("content")
        if type(content) is str:
            text = content
        else:
            text = content_text(content)
            composed.append(message)
        pipeline.check_text(text)
    place_media = None
    if composed and pipeline.media is not None:
        place_media = pipeline.media().read(composed, request, renders_only=renders_only)
    options = chat_options(request, pipeline.chat_rules, pipeline.known_tools)
    ids: Sequence[int] | None = None
    if request.kv_transfer_params and FORWARDED_IDS in request.kv_transfer_params:
        ids = _forwarded_ids(pipeline, request, place_media is not None)
    if ids is None:
        is_truncated = request.truncate_prompt_tokens is not None
        check = None if is_truncated else pipeline.check_text
        limits = pipeline.limits
        kept = None if limits.rules.counts_prompts else KeptTokens(limits.max_model_len + 1)
        if is_truncated:
            kept = limits.kept_tokens(
                request.truncate_prompt_tokens, from_end=request.truncation_side != "right"
            )
        ids = pipeline.tokenizer.encode_chat(messages, options, check, kept)
        if is_truncated or len(ids) > limits.max_model_len:
            ids = fit_prompt(
                request,
                ids,
                limits.max_model_len,
                is_text=True,
                rules=limits.rules,
            )
    media = None
    if place_media is not None:
        ids, media = place_media(ids)
    if messages and messages[-1].get("tool_calls"):
        text = text_with_calls(messages[-1])
    turns = _turns(messages) if pipeline.keeps_turns else ()
    return BuiltPrompt(ids, text, turns, media)


def _turns(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (str(message["role"]), content_text(message.get("content"))) for message in messages
    )


def _forwarded_ids(
    pipeline: RequestPipeline, request: ChatCompletionRequest, has_media: bool
) -> list[int] | None:
    """Returns the tokens from the prefill side; None where the messages have to be rendered."""
    ids = (request.kv_transfer_params or {}).pop(FORWARDED_IDS)
    if ids is None or request.echo or has_media:
        return None
    param = f"kv_transfer_params.{FORWARDED_IDS}"
    if (
        not isinstance(ids, list)
        or not ids
        or any(type(token_id) is not int or token_id < 0 for token_id in ids)
    ):
        raise bad_request(f"{param} must be a non-empty list of token IDs", param)
    pipeline.limits.check_vocabulary(param, ids)
    return ids


def request_template(
    template: str | None, kwargs: JsonObject | None, rules: ChatRules
) -> str | None:
    """Returns the request's chat template, if any.

    Raises:
        ApiError: 400 for a template where requests may not bring one.
    """
    has_template = template is not None or (kwargs or {}).get("chat_template") is not None
    if has_template and not rules.trusts_templates:
        raise bad_request(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )
    return template or None


def chat_options(
    request: ChatCompletionRequest | TokenizeChatRequest,
    rules: ChatRules,
    known_tools: KnownTools | None = None,
) -> ChatOptions:
    """Returns the options of the chat template. May pause.

    The request's tools become a `ToolSet`, which is remembered in `known_tools`.

    Raises:
        ApiError: as `request_template` does.
    """
    template = request.chat_template
    kwargs: Mapping[str, object] | None = request.chat_template_kwargs
    if template is not None or kwargs:
        template = request_template(template, request.chat_template_kwargs, rules)
    if kwargs or rules.template_kwargs or getattr(request, "reasoning_effort", None) is not None:
        kwargs = template_kwargs(request, rules.template_kwargs, rules.efforts)
    tools = request.tools
    if rules.hides_unused_tools and getattr(request, "tool_choice", None) == "none":
        tools = None
    documents = getattr(request, "documents", None)
    is_special = (
        rules.keeps_developers
        or request.continue_final_message
        or request.add_special_tokens
        or not request.add_generation_prompt
        or (tools is not None and not tools)
    )
    options = PLAIN_CHAT
    if tools:
        from app.core.api.chat.tool_set import tool_set  # not for chats without tools

        known_set = tool_set(tools, known_tools)
        request.tools = known_set
        options = known_set.options
    if not (is_special or template or kwargs or documents):
        return options
    return ChatOptions(
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
        tools=None if tools is None else options.tools or [],
        documents=documents,
        chat_template=template,
        chat_template_kwargs=kwargs,
        keeps_developers=rules.keeps_developers,
    )


def text_with_calls(message: Message) -> str:
    """Returns the text of a message, whatever its role, with its tool calls.

    The text of the last message is the reply of mode `echo`.
    """
    text = content_text(message.get("content"))
    calls = message.get("tool_calls")
    if not isinstance(calls, list):  # values of other roles are unchecked
        return text
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and function.get("name"):
            text += f"[{function.get('name')}({function.get('arguments')})]"
    return text
