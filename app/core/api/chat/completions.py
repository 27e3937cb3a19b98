"""POST /v1/chat/completions; for its answers, see `app.core.api.chat.writer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.api.answer_limits import check_repeated
from app.core.api.chat.media import tokens_by_modality
from app.core.api.chat.prompt import chat_prompt
from app.core.api.chat.thinking import EMPTY_THOUGHT_PARSERS
from app.core.api.chat.writer import DEFAULT_CALL_FORM, ChatResponseOptions, ChatWriter
from app.core.api.headers import IMAGE_HEADER, boolean_header
from app.core.api.logprobs import ALL
from app.core.protocol import chat as wire
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.protocol.options import NamedToolChoice
from app.core.server.http.route import STREAM_MEDIA, RouteDocs, post

if TYPE_CHECKING:
    from app.core.api.chat.media import BuiltPrompt
    from app.core.api.pipeline import RequestPipeline
    from app.core.protocol.validation import ValidatedRequest
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response
    from app.core.server.http.route import PlainHandler, Route


def routes(pipeline: RequestPipeline, plain: PlainHandler | None = None) -> list[Route]:
    """Returns the routes of chats; `plain` answers plain requests."""

    def chat_completions(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        request = pipeline.decode(context, wire.ChatCompletionRequest)
        accepted = pipeline.admit(request, context)
        writer_type = ChatWriter
        if request.tools:  # other chats need neither of these modules
            from app.core.api.chat.call_chunks import CallChatWriter
            from app.core.api.chat.tools import check_tool_choice

            check_tool_choice(request, pipeline.live.current.tools)
            writer_type = CallChatWriter
        prompt = chat_prompt(pipeline, request, request.messages)
        meta = pipeline.identity.response_meta(
            "chatcmpl", context, request.request_id, accepted.model
        )
        sends_image = False
        model = pipeline.live.current.model
        if model.omni:  # by the request's own choice, else by a draw
            header = boolean_header(context, IMAGE_HEADER)
            if header is None:
                sends_image = pipeline.images.random() * 100 < model.image_emission_rate
            else:
                sends_image = header
        options = response_options(pipeline, accepted, request.messages, prompt, sends_image)
        return pipeline.submit(accepted, meta, [prompt], writer_type(meta, options), context)

    docs = RouteDocs(
        body=(wire.ChatCompletionRequest,),
        example={"messages": EXAMPLE_CHAT, "max_tokens": 8},
        answer=wire.ChatCompletion,
        media=STREAM_MEDIA,
    )
    return [post("/v1/chat/completions", chat_completions, plain=plain, docs=docs)]


def response_options(
    pipeline: RequestPipeline,
    accepted: ValidatedRequest[wire.ChatCompletionRequest],
    messages: Sequence[wire.Message],
    prompt: BuiltPrompt,
    sends_image: bool = False,
) -> ChatResponseOptions:
    """Returns the options of the answer to a chat.

    Raises:
        ApiError: 400 for a stream that repeats too much of its prompt.
    """
    request = accepted.request
    settings = pipeline.live.current
    last_message = messages[-1]
    role = settings.api.response_role
    if not request.add_generation_prompt:
        role = str(last_message["role"])
    top_logprobs = None
    if request.logprobs:  # all alternatives when the client names tokens
        top_logprobs = ALL if request.logprob_token_ids else request.top_logprobs
    tool_choice = request.tool_choice
    has_named_tool = isinstance(tool_choice, NamedToolChoice) and tool_choice.type == "function"
    shows_reasoning = request.include_reasoning
    if request.stream and pipeline.chat_rules.streams_hidden_thoughts:
        shows_reasoning = True
    parser_runs = None
    form = DEFAULT_CALL_FORM
    if request.tools and tool_choice != "none":
        parser_runs = pipeline.responder.engine.recorder.parser_runs
        from app.core.api.chat.call_chunks import call_form  # not for chats without tools

        form = call_form(tool_choice, settings.tools.tool_call_parser)
    media_tokens: Mapping[str, int] | None = None
    if prompt.features and settings.api.enable_prompt_tokens_details:
        media_tokens = tokens_by_modality(prompt.features)
    echo = None
    if request.echo:
        echo = echoed_text(last_message, role)
    prompt_text = None
    if request.return_prompt_text:
        prompt_text = pipeline.tokenizer.decode(prompt.ids, False)
    repeated = len(echo or "") + len(prompt_text or "")
    if request.return_token_ids:
        repeated += len(prompt.ids)
    if request.stream and repeated:
        check_repeated("messages", accepted.n * repeated)

    return ChatResponseOptions(
        **pipeline.options(accepted),
        prompt_ids=prompt.ids,
        role=role,
        echo=echo,
        top_logprobs=top_logprobs,
        beams=request.use_beam_search,
        prompt_text=prompt_text,
        named_tool=has_named_tool,
        forced_tool=has_named_tool or tool_choice == "required",
        new_call_id=pipeline.identity.fresh_call_id,
        parser_runs=parser_runs,
        parses=pipeline.limits.parses,
        call_form=form,
        reasons=pipeline.limits.reasons,
        empty_thoughts=settings.reply.reasoning_parser in EMPTY_THOUGHT_PARSERS,
        show_reasoning=shows_reasoning,
        blocks=sends_image,
        media_tokens=media_tokens,
    )


def echoed_text(message: wire.Message, role: str) -> str:
    """Returns the text that an answer of this role repeats."""
    if message["role"] != role:
        return ""
    return wire.content_text(message.get("content"))
