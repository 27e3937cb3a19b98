"""POST /v1/messages and POST /v1/messages/count_tokens (vllm-api.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.anthropic.chats import message_chats
from app.api.anthropic.threads import ThreadStore, ThreadWriter
from app.api.anthropic.writer import MessageResponseOptions, MessageWriter, message_error
from app.api.builder import Prompt
from app.api.chat.prompt import chat_prompt
from app.api.chat.tools import check_tool_choice
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta, address_of
from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, post
from app.protocol.anthropic import Block, CountTokensRequest, MessagesRequest
from app.protocol.chat import ChatCompletionRequest


def routes(frontend: Frontend, threads: ThreadStore) -> list[Route]:
    """The routes; conversations are kept in `threads` where clients ask for that."""
    chat_of = message_chats(frontend)

    def create_message(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        message = frontend.decode(context, MessagesRequest)
        size = threads.resume(message) + (context.content_length or 0)
        asked = chat_of(message)
        accepted = frontend.accept(asked, context)
        check_tool_choice(asked, frontend.builder.settings.tools)
        prompt = chat_prompt(frontend, asked, asked.messages)
        head = frontend.identity.head("chatcmpl", context, asked.request_id, accepted.model)
        shape = _shape(frontend, asked, head, prompt)
        if message.thread is None:
            answer = MessageWriter(head, shape, frontend.identity.fresh_id)
        else:

            def keep(reply: Sequence[Block], reply_size: int) -> None:
                threads.keep(head.id, message, size + reply_size, reply)

            answer = ThreadWriter(head, shape, frontend.identity.fresh_id, keep)
        return frontend.generate(accepted, head, [prompt], answer, context)

    def count_tokens(context: RequestContext) -> Response:
        """How many tokens the prompt of a conversation has."""
        asked = chat_of(frontend.decode(context, CountTokensRequest))
        frontend.models.resolve(asked.model)
        check_tool_choice(asked, frontend.builder.settings.tools)
        counted = len(chat_prompt(frontend, asked, asked.messages).ids)
        return json_response(
            {"input_tokens": counted, "context_management": {"original_input_tokens": counted}}
        )

    return [
        post("/v1/messages", create_message, message_error),
        post("/v1/messages/count_tokens", count_tokens, message_error),
    ]


def _shape(
    frontend: Frontend, asked: ChatCompletionRequest, head: ResponseMeta, prompt: Prompt
) -> MessageResponseOptions:
    media = prompt.features
    return MessageResponseOptions(
        prompt_tokens=len(prompt.ids),
        prompt_details=frontend.prompt_details,
        transfer=address_of(asked, frontend.identity, head, len(prompt.ids)),
        encoded_media=frontend.encoded_media(media and media["mm_hashes"]),
    )
