"""POST /v1/messages and /v1/messages/count_tokens, of the Anthropic family."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from app.core.api.chat.prompt import chat_options, chat_prompt
from app.core.api.chat.rules import ChatRules
from app.core.api.pipeline import RequestPipeline
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.protocol.options import Effort
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import STREAM_MEDIA, Route, RouteDocs, post
from app.core.text.base import ChatOptions, Tokenizer, TokenizerInputError
from app.extensions.anthropic import protocol as wire
from app.extensions.anthropic.errors import message_error
from app.extensions.anthropic.rules import MessageRules
from app.extensions.anthropic.settings import AnthropicSettings
from app.extensions.anthropic.writer import MessageWriter

if TYPE_CHECKING:
    from app.extensions.anthropic.threads import Threads

T = TypeVar("T", wire.MessagesRequest, wire.CountTokensRequest)
EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")


def routes(pipeline: RequestPipeline, threads: Threads) -> list[Route]:
    """Returns the routes of the Anthropic family."""
    convert = message_chats(pipeline)
    rules = pipeline.version.rules(MessageRules)
    on_error = partial(message_error, has_anthropic_types=rules.has_anthropic_types)

    def check_tools(chat: ChatCompletionRequest) -> None:
        if chat.tools:
            from app.core.api.chat.tools import check_tool_choice  # not for chats without tools

            check_tool_choice(chat, pipeline.live.current.tools)

    def create_message(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        request = decode(pipeline, context, wire.MessagesRequest)
        if request.thread is not None:
            from app.extensions.anthropic.threads import resume  # for few requests

            resume(threads, request)
        chat = convert(request)
        accepted = pipeline.admit(chat, context)
        check_tools(chat)
        prompt = chat_prompt(pipeline, chat, chat.messages)
        identity = pipeline.identity
        meta = identity.response_meta("chatcmpl", context, chat.request_id, accepted.model)
        writer = writer_type(pipeline)(
            meta,
            len(prompt.ids),
            prompt_details=pipeline.live.current.api.enable_prompt_tokens_details,
            new_id=identity.fresh_id,
            rules=rules,
        )
        if request.thread is not None:
            from app.extensions.anthropic.threads import store_thread

            writer.on_end = partial(store_thread, threads, request, meta.id)
        return pipeline.submit(accepted, meta, [prompt], writer, context)

    def count_tokens(context: RequestContext) -> Response:
        """Number of tokens in a conversation's prompt."""
        chat = convert(decode(pipeline, context, wire.CountTokensRequest))
        model = pipeline.models.resolve(chat.model)
        check_tools(chat)
        tokens = scripted_count(pipeline, chat, model=model, context=context)
        if tokens is None:
            tokens = len(chat_prompt(pipeline, chat, chat.messages).ids)
        context_management = {"original_input_tokens": tokens}
        return json_response({"input_tokens": tokens, "context_management": context_management})

    message_docs = RouteDocs(
        body=(wire.MessagesRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT, "max_tokens": 8},
        media=STREAM_MEDIA,
        errors=(wire.ErrorResponse,),
    )
    count_docs = RouteDocs(
        body=(wire.CountTokensRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT},
        errors=(wire.ErrorResponse,),
    )
    return [
        post("/v1/messages", create_message, on_error, docs=message_docs),
        post("/v1/messages/count_tokens", count_tokens, on_error, docs=count_docs),
    ]


def writer_type(pipeline: RequestPipeline) -> type[MessageWriter]:
    """Returns the class of writers, which differs where a rule of a script can have blocks."""
    if pipeline.scripts is None:
        return MessageWriter
    from app.extensions.anthropic.recorded_writer import RecordedMessageWriter

    return RecordedMessageWriter


def decode(pipeline: RequestPipeline, context: RequestContext, request_type: type[T]) -> T:
    """Returns the request in the body.

    Raises:
        ApiError: 400, 408 or 413.
    """
    try:
        return pipeline.decode(context, request_type)
    except ApiError as error:
        from app.extensions.anthropic.refused import decode_without_refused

        return decode_without_refused(pipeline, context, request_type=request_type, error=error)


def scripted_count(
    pipeline: RequestPipeline, chat: ChatCompletionRequest, *, model: str, context: RequestContext
) -> int | None:
    """Returns the number of tokens that a rule of a script sets; None without one."""
    if pipeline.scripts is None:
        return None
    [answer] = pipeline.scripts.pooled(
        [chat.messages], "input_tokens", model=model, context=context
    )
    if answer is None or answer.usage is None:
        return None
    return answer.usage.prompt_tokens


def message_chats(
    pipeline: RequestPipeline,
) -> Callable[[wire.AnthropicRequest], ChatCompletionRequest]:
    """Returns the function that converts requests of this family to chats.

    The chat template is probed once, when the first request depends on the result.
    """
    tokenizer = pipeline.tokenizer
    settings = pipeline.live.current
    probes_model_template = pipeline.version.rules(MessageRules).probes_model_template
    can_probe = probes_model_template or bool(settings.tokenizer.chat_template)

    @cache
    def merges_system() -> bool:
        return not can_probe or template_merges_system(tokenizer)

    effort = settings.section(AnthropicSettings).anthropic_disabled_thinking_effort

    @cache
    def disabled_effort() -> Effort:
        if effort == "auto":
            return probe_disabled_effort(tokenizer, pipeline.chat_rules)
        return effort

    def convert(request: wire.AnthropicRequest) -> ChatCompletionRequest:
        return wire.chat_request(request, merges_system, disabled_effort)

    return convert


def template_merges_system(tokenizer: Tokenizer) -> bool:
    """Returns true when the chat template rejects system messages within a conversation."""
    messages = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        tokenizer.render_chat(messages, ChatOptions(add_generation_prompt=False))
    except TokenizerInputError:
        return True
    return False


def probe_disabled_effort(tokenizer: Tokenizer, rules: ChatRules) -> Effort:
    """Returns the effort that switches thoughts off: `low` if the template does not know `none`."""

    def render(effort: Effort) -> str:
        chat = ChatCompletionRequest(
            messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort
        )
        return tokenizer.render_chat(chat.messages, chat_options(chat, rules))

    try:
        prompt_without_effort = render("none")
    except TokenizerInputError:
        return "low"
    for effort in EFFORTS:  # each renders another prompt, if the template knows the switch
        with suppress(TokenizerInputError):
            if render(effort) == prompt_without_effort:
                return "low"
    return "none"
