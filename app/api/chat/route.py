"""POST /v1/chat/completions, and the same for several conversations at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from app.api.builder import Prompt
from app.api.chat.media import features, media_tokens
from app.api.chat.prompt import chat_prompt, chat_prompts, content_text
from app.api.chat.writer import ChatResponseOptions, ChatWriter
from app.api.frontend import Frontend
from app.api.identity import address_of
from app.http.context import RequestContext
from app.http.response import Response
from app.http.route import PlainHandler, Route, post
from app.protocol.chat import BatchChatRequest, ChatCompletionRequest
from app.protocol.messages import Message
from app.protocol.options import NamedToolChoice
from app.protocol.validation.generation import ValidatedRequest


def routes(frontend: Frontend, plain: PlainHandler | None = None) -> list[Route]:
    """The chat routes; `plain` answers plain chats on the fast path."""

    def chat_completions(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        request = frontend.decode(context, ChatCompletionRequest)
        asked = frontend.accept(request, context)
        prompt = chat_prompt(frontend, request, request.messages)
        head = frontend.identity.head("chatcmpl", context, request.request_id, asked.model)
        image = frontend.wants_image(context)
        shape = ChatResponseOptions(**chat_shape(frontend, asked, request.messages, prompt), blocks=image)
        return frontend.generate(asked, head, [prompt], ChatWriter(head, shape), context, image=image)

    def chat_batch(context: RequestContext) -> Response:
        """The next message of each of several conversations, as the choices of one answer."""
        request = frontend.decode(context, BatchChatRequest)
        asked = frontend.accept(request, context)
        prompts = chat_prompts(frontend, request, request.messages)
        head = frontend.identity.head("chatcmpl", context, request.request_id, asked.model)
        all_ids = list(chain.from_iterable(prompt.ids for prompt in prompts))
        last = request.messages[-1]
        shape = chat_shape(frontend, asked, last, Prompt(all_ids, "", features=features(last, all_ids)))
        shape |= {"n": len(prompts)}
        writer = ChatWriter(head, ChatResponseOptions(**shape | {"prompt_details": False}))
        return frontend.generate(asked, head, prompts, writer, context)

    return [
        post("/v1/chat/completions", chat_completions, plain=plain),
        post("/v1/chat/completions/batch", chat_batch),
    ]


def chat_shape(
    frontend: Frontend,
    asked: ValidatedRequest[ChatCompletionRequest],
    messages: Sequence[Message],
    prompt: Prompt,
) -> dict[str, Any]:
    """The fields of `ChatResponseOptions` that the request decides."""
    request = asked.request
    last, ids, recorder = messages[-1], prompt.ids, frontend.responder.engine.recorder
    role = "assistant" if request.add_generation_prompt else last["role"]
    named = isinstance(request.tool_choice, NamedToolChoice) and request.tool_choice.type == "function"
    media = prompt.features
    return {
        **frontend.options(asked),
        "prompt_ids": ids,
        "role": role,
        "echo": content_text(last.get("content")) if request.echo and last["role"] == role else "",
        "top_logprobs": request.top_logprobs if request.logprobs else None,
        "prompt_text": frontend.tokenizer.decode(ids, False) if request.return_prompt_text else None,
        "named_tool": named,
        "forced_tool": named or request.tool_choice == "required",
        "new_call_id": lambda: f"chatcmpl-tool-{frontend.identity.fresh_id()}",
        "parsed": recorder.parsed_tools if request.tools and request.tool_choice != "none" else None,
        "reasons": frontend.limits.reasons,
        "show_reasoning": request.include_reasoning,
        "transfer": address_of(request, frontend.identity, len(ids)),
        "encoded_media": frontend.encoded_media(media and media["mm_hashes"]),
        "media_tokens": media_tokens(media),
    }
