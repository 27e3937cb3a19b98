"""POST /v1/chat/completions, and the batch route for several conversations at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from app.serving.api.chat.media import BuiltPrompt, features, media_tokens
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.chat.thinking import TELLS_EMPTY
from app.serving.api.chat.tools import check_tool_choice
from app.serving.api.chat.writer import ChatResponseOptions, ChatWriter
from app.serving.api.identity import ResponseMeta, address_of
from app.serving.api.logprobs import ALL
from app.serving.api.pipeline import SEND_IMAGE, RequestPipeline, check_repeated, truth
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response
from app.serving.http.route import PlainHandler, Route, post
from app.serving.protocol.chat import BATCH_LATE, BatchChatRequest, ChatCompletionRequest
from app.serving.protocol.messages import Message, content_text
from app.serving.protocol.options import NamedToolChoice
from app.serving.protocol.validation import ValidatedRequest


def routes(pipeline: RequestPipeline, plain: PlainHandler | None = None) -> list[Route]:
    def chat_completions(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        request = pipeline.decode(context, ChatCompletionRequest)
        asked = pipeline.admit(request, context)
        if request.tools:
            check_tool_choice(request, pipeline.settings.tools)
        prompt = chat_prompt(pipeline, request, request.messages)
        meta = pipeline.identity.response_meta("chatcmpl", context, request.request_id, asked.model)
        image = pipeline.settings.model.omni and wants_image(pipeline, context)
        options = response_options(pipeline, asked, meta, request.messages, prompt, image)
        return pipeline.submit(asked, meta, [prompt], ChatWriter(meta, options), context, image=image)

    def chat_batch(context: RequestContext) -> Response:
        """The next message of each of several conversations, as the choices of one answer."""
        try:
            request = pipeline.decode(context, BatchChatRequest)
        except ApiError as error:
            # A field that vLLM checks late is refused without a `param`.
            field = (error.param or "").removeprefix("body.").partition(".")[0]
            if error.type != "Bad Request" or field not in BATCH_LATE:
                raise
            raise bad_request(error.message) from None
        asked = pipeline.admit(request, context)
        prompts = [chat_prompt(pipeline, request, messages) for messages in request.messages]
        meta = pipeline.identity.response_meta("chatcmpl", context, request.request_id, asked.model)
        all_ids = list(chain.from_iterable(prompt.ids for prompt in prompts))
        last = request.messages[-1]
        whole = BuiltPrompt(all_ids, "", features=features(last, all_ids))
        if len(prompts) > 1:
            meta = replace(meta, joint="_")
        options = response_options(pipeline, asked, meta, last, whole)
        options = replace(options, n=len(prompts), prompt_details=False, metrics=False)
        return pipeline.submit(asked, meta, prompts, ChatWriter(meta, options), context)

    return [
        post("/v1/chat/completions", chat_completions, plain=plain),
        post("/v1/chat/completions/batch", chat_batch),
    ]


def wants_image(pipeline: RequestPipeline, context: RequestContext) -> bool:
    """Returns the request's own choice, else a draw."""
    asked, rate = truth(context, SEND_IMAGE), pipeline.settings.model.image_emission_rate
    return pipeline.images.random() * 100 < rate if asked is None else asked


def response_options(
    pipeline: RequestPipeline,
    asked: ValidatedRequest[ChatCompletionRequest],
    meta: ResponseMeta,
    messages: Sequence[Message],
    prompt: BuiltPrompt,
    image: bool = False,
) -> ChatResponseOptions:
    request, last, ids, media = asked.request, messages[-1], prompt.ids, prompt.features
    role = pipeline.settings.api.response_role if request.add_generation_prompt else str(last["role"])
    choice, top_logprobs = request.tool_choice, None
    if request.logprobs:  # all alternatives when the client names tokens
        top_logprobs = ALL if request.logprob_token_ids else request.top_logprobs
    named = isinstance(choice, NamedToolChoice) and choice.type == "function"
    recorder = pipeline.responder.engine.recorder
    transfer = None
    if request.kv_transfer_params:
        transfer = address_of(request, pipeline.identity, meta, len(ids))
    tokens_of: Mapping[str, int] | None = None
    if media and pipeline.settings.api.enable_prompt_tokens_details:
        template, encode = chat_options(request, pipeline.chat_rules), pipeline.tokenizer.encode_chat
        tokens_of = media_tokens(messages, media["mm_hashes"], lambda some: len(encode(some, template)))
    echo = (content_text(last.get("content")) if last["role"] == role else "") if request.echo else None
    prompt_text = pipeline.tokenizer.decode(ids, False) if request.return_prompt_text else None
    repeated = len(echo or "") + len(prompt_text or "") + (len(ids) if request.return_token_ids else 0)
    if request.stream and repeated:
        check_repeated("messages", asked.n * repeated)
    return ChatResponseOptions(
        **pipeline.options(asked),
        prompt_ids=ids,
        role=role,
        echo=echo,
        top_logprobs=top_logprobs,
        beams=request.use_beam_search,
        prompt_text=prompt_text,
        named_tool=named,
        forced_tool=named or choice == "required",
        new_call_id=lambda: f"chatcmpl-tool-{pipeline.identity.fresh_id()}",
        parsed=recorder.parsed_tools if request.tools and choice != "none" else None,
        parses=pipeline.limits.parses,
        reasons=pipeline.limits.reasons,
        empty_thoughts=pipeline.settings.reply.reasoning_parser in TELLS_EMPTY,
        show_reasoning=request.include_reasoning,
        blocks=image,
        transfer=transfer,
        encoded_media=pipeline.encoded_media(media["mm_hashes"]) if media else None,
        media_tokens=tokens_of,
    )
