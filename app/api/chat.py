"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint, request

from app.api.chat_answer import ChatAnswer, ChatShape
from app.api.conversation import chat_options, content_text, last_message_text
from app.api.door import Door, Prompt
from app.api.replies import Reply
from app.protocol.chat import ChatCompletionRequest


def blueprint(door: Door) -> Blueprint:
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    def chat_completions() -> Reply:
        """The next message of a conversation, whole or as a stream."""
        environ = request.environ
        asked = door.decode(environ, ChatCompletionRequest)
        model = door.enter(asked)
        for message in asked.messages:
            door.check_text(content_text(message.get("content")))
        ids = door.fit(asked, door.tokenizer.encode_chat(asked.messages, chat_options(asked)))
        head = door.identity.head("chatcmpl", environ, asked.request_id, model)
        prompt = Prompt(ids, last_message_text(asked.messages))
        return door.play(asked, head, [prompt], ChatAnswer(head, _shape(door, asked, ids)), environ)

    return routes


def _shape(door: Door, asked: ChatCompletionRequest, ids: Sequence[int]) -> ChatShape:
    last = asked.messages[-1]
    role = "assistant" if asked.add_generation_prompt else last["role"]
    return ChatShape(
        **door.shape(asked),
        prompt_ids=ids,
        role=role,
        echo=content_text(last.get("content")) if asked.echo and last["role"] == role else "",
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        prompt_text=door.tokenizer.decode(ids, False) if asked.return_prompt_text else None,
    )
