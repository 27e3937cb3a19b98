"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import Blueprint, request

from app.api.builder import Prompt
from app.api.chat.media import features, media_tokens
from app.api.chat.prompt import chat_options, content_text, last_message_text
from app.api.chat.writer import ChatResponseOptions, ChatWriter
from app.api.door import Door
from app.api.kv_transfer import address_of
from app.http.response import Reply
from app.protocol.batch import BatchChatRequest
from app.protocol.chat import ChatCompletionRequest
from app.protocol.messages import Message
from app.protocol.tools import NamedToolChoice


def blueprint(door: Door) -> Blueprint:
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    def chat_completions() -> Reply:
        """The next message of a conversation, whole or as a stream."""
        environ = request.environ
        asked = door.decode(environ, ChatCompletionRequest)
        model = door.enter(asked, environ)
        prompt = chat_prompt(door, asked, asked.messages)
        head = door.identity.head("chatcmpl", environ, asked.request_id, model)
        image = door.wants_image(environ)
        shape = ChatResponseOptions(**chat_shape(door, asked, asked.messages, prompt), blocks=image)
        return door.play(asked, head, [prompt], ChatWriter(head, shape), environ, image=image)

    @routes.post("/v1/chat/completions/batch")
    def chat_batch() -> Reply:
        """The next message of each of several conversations, as the choices of one answer."""
        environ = request.environ
        asked = door.decode(environ, BatchChatRequest)
        model = door.enter(asked, environ)
        prompts = [chat_prompt(door, asked, conversation) for conversation in asked.messages]
        head = door.identity.head("chatcmpl", environ, asked.request_id, model)
        all_ids = [token for prompt in prompts for token in prompt.ids]
        last = asked.messages[-1]
        shape = chat_shape(door, asked, last, Prompt(all_ids, "", features=features(last, all_ids)))
        shape |= {"n": len(prompts)}
        answer = ChatWriter(head, ChatResponseOptions(**shape | {"prompt_details": False}))
        return door.play(asked, head, prompts, answer, environ)

    return routes


def chat_prompt(door: Door, asked: ChatCompletionRequest, messages: Sequence[Message]) -> Prompt:
    """The conversation as tokens. ApiError 400 when it cannot be rendered, or exceeds the context."""
    for message in messages:
        door.check_text(content_text(message.get("content")))
    ids = door.fit(asked, door.tokenizer.encode_chat(messages, chat_options(asked)))
    echo_text, media = last_message_text(messages), features(messages, ids)
    if not door.keeps_turns:
        return Prompt(ids, echo_text, (), media)
    turns = ((str(message["role"]), content_text(message.get("content"))) for message in messages)
    return Prompt(ids, echo_text, tuple(turns), media)


def chat_shape(
    door: Door, asked: ChatCompletionRequest, messages: Sequence[Message], prompt: Prompt
) -> dict[str, Any]:
    """The fields of `ChatResponseOptions` that the request decides."""
    last, ids, recorder = messages[-1], prompt.ids, door.delivery.service.recorder
    role = "assistant" if asked.add_generation_prompt else last["role"]
    named = isinstance(asked.tool_choice, NamedToolChoice) and asked.tool_choice.type == "function"
    media = prompt.features
    return {
        **door.shape(asked),
        "prompt_ids": ids,
        "role": role,
        "echo": content_text(last.get("content")) if asked.echo and last["role"] == role else "",
        "top_logprobs": asked.top_logprobs if asked.logprobs else None,
        "prompt_text": door.tokenizer.decode(ids, False) if asked.return_prompt_text else None,
        "named_tool": named,
        "forced_tool": named or asked.tool_choice == "required",
        "new_call_id": lambda: f"chatcmpl-tool-{door.identity.fresh_id()}",
        "parsed": recorder.parsed_tools if asked.tools and asked.tool_choice != "none" else None,
        "reasons": door.limits.reasons,
        "show_reasoning": asked.include_reasoning,
        "transfer": address_of(asked, door.identity, len(ids)),
        "encoded_media": door.encoded_media(media and media["mm_hashes"]),
        "media_tokens": media_tokens(media),
    }
