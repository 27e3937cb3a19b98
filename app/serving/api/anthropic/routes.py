"""POST /v1/messages and POST /v1/messages/count_tokens (vllm-api.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

from app.serving.api.anthropic.writer import (
    MessageResponseOptions,
    MessageWriter,
    ThreadStore,
    message_error,
)
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.chat.tools import check_tool_choice
from app.serving.api.identity import address_of
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, post
from app.serving.protocol.anthropic import Asked, Block, CountTokensRequest, MessagesRequest, chat_request
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.options import Effort
from app.text import Tokenizer
from app.text.base import ChatOptions, TokenizerInputError


def routes(pipeline: RequestPipeline, threads: ThreadStore) -> list[Route]:
    """Returns the routes; `threads` keeps conversations for clients that request it."""
    chat_of = message_chats(pipeline)

    def create_message(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        message = pipeline.decode(context, MessagesRequest)
        size = threads.resume(message) + (context.content_length or 0)
        asked = chat_of(message)
        accepted = pipeline.admit(asked, context)
        check_tool_choice(asked, pipeline.builder.settings.tools)
        prompt = chat_prompt(pipeline, asked, asked.messages)
        head = pipeline.identity.response_meta("chatcmpl", context, asked.request_id, accepted.model)
        media = prompt.features
        shape = MessageResponseOptions(
            prompt_tokens=len(prompt.ids),
            prompt_details=pipeline.prompt_details,
            transfer=address_of(asked, pipeline.identity, head, len(prompt.ids)),
            encoded_media=pipeline.encoded_media(media and media["mm_hashes"]),
        )

        def keep(reply: Sequence[Block], reply_size: int) -> None:
            threads.keep(head.id, message, size + reply_size, reply)

        answer = MessageWriter(head, shape, pipeline.identity.fresh_id, keep if message.thread else None)
        return pipeline.submit(accepted, head, [prompt], answer, context)

    def count_tokens(context: RequestContext) -> Response:
        """Number of tokens in a conversation's prompt."""
        asked = chat_of(pipeline.decode(context, CountTokensRequest))
        pipeline.models.resolve(asked.model)
        check_tool_choice(asked, pipeline.builder.settings.tools)
        counted = len(chat_prompt(pipeline, asked, asked.messages).ids)
        return json_response(
            {"input_tokens": counted, "context_management": {"original_input_tokens": counted}}
        )

    return [
        post("/v1/messages", create_message, message_error),
        post("/v1/messages/count_tokens", count_tokens, message_error),
    ]


THINKING_EFFORTS: Sequence[Effort] = ("low", "medium", "high", "xhigh", "max")
"""Efforts that must render another prompt than `none`, if the chat template knows that switch."""


def message_chats(pipeline: RequestPipeline) -> Callable[[Asked], ChatCompletionRequest]:
    tokenizer = pipeline.tokenizer
    effort = pipeline.builder.settings.reply.anthropic_disabled_thinking_effort
    merges_system = cache(partial(_merges_system, tokenizer))
    probe = partial(_disabled_effort, tokenizer, pipeline.chat_rules)
    disabled_effort = cache(lambda: probe() if effort == "auto" else effort)
    return lambda asked: chat_request(asked, merges_system, disabled_effort)


def _merges_system(tokenizer: Tokenizer) -> bool:
    """True when the chat template refuses system turns further on in a conversation."""
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        tokenizer.render_chat(turns, ChatOptions(add_generation_prompt=False))
    except TokenizerInputError:
        return True
    return False


def _disabled_effort(tokenizer: Tokenizer, rules: ChatRules) -> Effort:
    """Returns the effort that means no thoughts: `low` where the chat template does not know `none`."""

    def prompt(effort: Effort) -> str:
        chat = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort)
        return tokenizer.render_chat(chat.messages, chat_options(chat, rules))

    try:
        without = prompt("none")
    except TokenizerInputError:
        return "low"
    for effort in THINKING_EFFORTS:
        with suppress(TokenizerInputError):
            if prompt(effort) == without:
                return "low"
    return "none"
