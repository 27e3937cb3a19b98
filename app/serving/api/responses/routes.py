"""POST /v1/responses, and routes to read, follow and cancel a response (vllm-api.md section 6)."""

from __future__ import annotations

import msgspec

from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.chat.prompt import chat_prompt
from app.serving.api.errors import error_response
from app.serving.api.identity import ResponseMeta, address_of
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.responses.store import Background, KeptResponse, ResponseStore, invalid
from app.serving.api.responses.writer import ResponsesOptions, ResponsesWriter, new_response
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import EVENT_STREAM, Response, json_response
from app.serving.http.route import Route, get, post
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.decoding import decode_query
from app.serving.protocol.response_tools import called_tools
from app.serving.protocol.responses import ResponseObject, ResponsesRequest
from app.serving.protocol.responses_chat import ResponsesChat, chat_request, echo_text, go_on
from app.serving.protocol.validation import resolve_max_tokens


class Retrieval(msgspec.Struct, kw_only=True):
    starting_after: int = -1
    """Number of the last event that the client has."""
    stream: bool | None = False


def routes(pipeline: RequestPipeline, store: ResponseStore) -> list[Route]:

    def create_response(context: RequestContext) -> Response:
        """The answer to some input: whole, as a stream, or in the background."""
        asked = pipeline.decode(context, ResponsesRequest)
        chat = chat_request(asked)
        try:
            accepted = pipeline.admit(chat, context)
        except ApiError as error:
            raise _renamed(error) from None
        head = pipeline.identity.response_meta("resp", context, "", accepted.model)
        head = msgspec.structs.replace(head, id=asked.request_id or head.id.replace("-", "_", 1), joint="_")
        _follow_on(asked, chat, store)
        prompt = response_prompt(pipeline, asked, chat)
        shape = _shape(pipeline, asked, chat, prompt, head)
        kept = None
        if asked.store and store.keeps:
            queued = msgspec.structs.replace(shape.response, status="queued")
            events = list[bytes]() if asked.background and chat.stream else None
            kept = KeptResponse(queued, chat.messages, events)

        def end(response: ResponseObject) -> None:
            if kept is not None:
                kept.response = response
                if not asked.background:
                    store.keep(kept)

        answer = ResponsesWriter(shape, pipeline.identity.fresh_id, end)
        responder = None
        if asked.background and kept is not None:
            chat.stream = False  # a refusal by the engine sets the status, even for a stream
            responder = Background.of(pipeline.responder, kept, store)
        return pipeline.submit(accepted, head, [prompt], answer, context, responder=responder)

    def retrieve_response(context: RequestContext) -> Response:
        """A kept response as it is now; or, with `?stream=true`, its events."""
        kept, query = store.get(context.params["response_id"]), decode_query(context.query(), Retrieval)
        if not query.stream:
            return json_response(kept.response)
        if kept.events is None:
            raise bad_request("no events are kept of this response", "response_id")
        body = kept.follow(max(0, query.starting_after + 1), context.connection)
        return Response(body, 200, pipeline.responder.headers, EVENT_STREAM)

    def cancel_response(context: RequestContext) -> Response:
        """Ends a response that is being generated in the background."""
        kept = store.get(context.params["response_id"])
        kept.cancel()
        return json_response(kept.response)

    return [
        post("/v1/responses", create_response, error_of_responses),
        get("/v1/responses/{response_id}", retrieve_response),
        post("/v1/responses/{response_id}/cancel", cancel_response, error_of_responses),
    ]


def _renamed(error: ApiError) -> ApiError:
    if error.param != "max_completion_tokens":
        return error
    name = "max_output_tokens"
    return ApiError(error.status, error.type, error.message.replace(error.param, name), name)


def error_of_responses(error: Exception) -> Response:
    """Returns the response for `error`; 400 for tools nested one level short of the parser's limit."""
    if isinstance(error, RecursionError):
        return error_response(bad_request("The request is nested too deeply."))
    return error_response(error)


def _follow_on(asked: ResponsesRequest, chat: ResponsesChat, store: ResponseStore) -> None:
    """Puts the conversation so far before the input. ApiError for an unknown response, or without a store."""
    if asked.background and not store.keeps:
        missing = "background needs kept responses, and enable-responses-store is off on this server."
        raise invalid(missing, "background")
    if asked.previous_response_id is None:
        return
    if asked.previous_input_messages:
        both = "previous_input_messages and previous_response_id exclude each other."
        raise invalid(both, "previous_response_id")
    before = store.get(asked.previous_response_id)
    go_on(chat, before.messages, before.items())


def response_prompt(
    pipeline: RequestPipeline, asked: ResponsesRequest, chat: ChatCompletionRequest
) -> BuiltPrompt:
    """Returns the conversation as tokens; truncation "auto" keeps as many last tokens as leave room."""
    if asked.truncation == "auto":
        room = pipeline.limits.max_model_len - max(asked.max_output_tokens or 1, 1)
        chat.truncate_prompt_tokens, chat.truncation_side = max(room, 1), "left"
    prompt = chat_prompt(pipeline, chat, chat.messages)
    return msgspec.structs.replace(prompt, echo_text=echo_text(asked.input), turns=())


def _shape(
    pipeline: RequestPipeline,
    asked: ResponsesRequest,
    chat: ChatCompletionRequest,
    prompt: BuiltPrompt,
    head: ResponseMeta,
) -> ResponsesOptions:
    ids, media = prompt.ids, prompt.features
    most_tokens = resolve_max_tokens(asked.max_output_tokens, len(ids), pipeline.limits)
    hides = pipeline.limits.parses and not asked.include_reasoning
    return ResponsesOptions(
        response=new_response(asked, head, most_tokens),
        prompt_ids=ids,
        top_logprobs=None if hides else asked.logprobs,
        token_id_names=pipeline.settings.api.return_tokens_as_token_ids,
        metrics=pipeline.settings.api.enable_per_request_metrics,
        shows_reasoning=asked.include_reasoning,
        calls=called_tools(asked.tools),
        parses=pipeline.limits.parses,
        transfer=address_of(chat, pipeline.identity, head, len(ids)),
        encoded_media=pipeline.encoded_media(media and media["mm_hashes"]),
        prompt_text=pipeline.tokenizer.decode(ids, False) if asked.enable_response_messages else None,
    )
