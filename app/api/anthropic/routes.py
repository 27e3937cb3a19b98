"""POST /v1/messages and POST /v1/messages/count_tokens (vllm-api.md section 7)."""

from __future__ import annotations

from flask import Blueprint, request

from app.api.anthropic.errors import init_errors
from app.api.anthropic.writer import MessageResponseOptions, MessageWriter
from app.api.builder import Prompt
from app.api.chat.route import chat_prompt
from app.api.door import Door
from app.api.kv_transfer import address_of
from app.http.response import Reply, json_reply
from app.protocol.anthropic import CountTokensRequest, MessagesRequest
from app.protocol.anthropic_chat import chat_request
from app.protocol.chat import ChatCompletionRequest


def blueprint(door: Door) -> Blueprint:
    routes = Blueprint("messages", __name__)
    init_errors(routes)

    @routes.post("/v1/messages")
    def create_message() -> Reply:
        """The next message of a conversation, whole or as a stream."""
        environ = request.environ
        asked = chat_request(door.decode(environ, MessagesRequest))
        model = door.enter(asked, environ)
        prompt = chat_prompt(door, asked, asked.messages)
        head = door.identity.head("chatcmpl", environ, asked.request_id, model)
        answer = MessageWriter(head, _shape(door, asked, prompt), door.identity.fresh_id)
        return door.play(asked, head, [prompt], answer, environ)

    @routes.post("/v1/messages/count_tokens")
    def count_tokens() -> Reply:
        """How many tokens the prompt of a conversation has."""
        asked = chat_request(door.decode(request.environ, CountTokensRequest))
        door.models.resolve(asked.model)
        counted = len(chat_prompt(door, asked, asked.messages).ids)
        return json_reply({"input_tokens": counted, "context_management": {"original_input_tokens": counted}})

    return routes


def _shape(door: Door, asked: ChatCompletionRequest, prompt: Prompt) -> MessageResponseOptions:
    media = prompt.features
    return MessageResponseOptions(
        prompt_tokens=len(prompt.ids),
        prompt_details=door.prompt_details,
        transfer=address_of(asked, door.identity, len(prompt.ids)),
        encoded_media=door.encoded_media(media and media["mm_hashes"]),
    )
