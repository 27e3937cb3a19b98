"""POST /v1/responses, and routes that read, follow and cancel a stored response."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.core.api.chat.media import BuiltPrompt
from app.core.api.chat.prompt import chat_prompt
from app.core.api.identity import ResponseMeta
from app.core.api.pipeline import RequestPipeline
from app.core.api.responder import Responder
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.common import encode_to_keep
from app.core.protocol.decoding import decode_query
from app.core.protocol.validation import ValidatedRequest
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request
from app.core.server.http.response import EVENT_STREAM, Response, json_response
from app.core.server.http.route import STREAM_MEDIA, ErrorHandler, Route, RouteDocs, get, post
from app.extensions.responses import protocol as wire
from app.extensions.responses.chat import (
    ResponsesChat,
    chat_request,
    echo_text,
    prepend_history,
    prompt_messages,
)
from app.extensions.responses.response import new_response
from app.extensions.responses.rules import ResponseRules
from app.extensions.responses.store import ResponseStore
from app.extensions.responses.store_errors import invalid
from app.extensions.responses.tools import called_tools
from app.extensions.responses.writer import ResponsesOptions, ResponsesWriter


class Retrieval(Struct, kw_only=True):
    """Query of a retrieval: where the events start, and whether to stream them."""

    starting_after: int = -1
    stream: bool | None = False


def routes(handlers: "ResponseHandlers") -> list[Route]:
    """Returns the routes of the Responses API."""
    answer_type = handlers.answer_type
    create_docs = RouteDocs(
        body=(handlers.request_type,),
        example={"input": "hello"},
        answer=answer_type,
        media=STREAM_MEDIA,
    )
    retrieve_docs = RouteDocs(query=Retrieval, answer=answer_type, media=STREAM_MEDIA)
    cancel_docs = RouteDocs(answer=answer_type)
    routes = [
        post("/v1/responses", handlers.create_response, docs=create_docs),
        get("/v1/responses/{response_id}", handlers.retrieve_response, docs=retrieve_docs),
        post("/v1/responses/{response_id}/cancel", handlers.cancel_response, docs=cancel_docs),
    ]
    return [replace(route, on_error=handlers.on_error) for route in routes]


class ResponseHandlers:
    """Handlers of the Responses API, in vLLM's form."""

    answer_type: type[wire.ResponseObject] = wire.ResponseObject
    end_of_events = b""
    """Event after the last one of a stream."""
    on_error: ErrorHandler | None = None

    def __init__(self, pipeline: RequestPipeline, store: ResponseStore) -> None:
        self._pipeline = pipeline
        self._store = store
        self.rules = pipeline.version.rules(ResponseRules)
        self.request_type = self.rules.request_type

    def create_response(self, context: RequestContext) -> Response:
        """The answer to some input: whole, as a stream, or in the background."""
        pipeline = self._pipeline
        store = self._store
        request = pipeline.decode(context, self.request_type)
        chat = chat_request(request)
        if self.rules.hides_unused_tools and chat.tool_choice == "none":
            chat.tools = None
        accepted = self._admit(chat, context)
        meta = pipeline.identity.response_meta("resp", context, "", accepted.model)
        response_id = request.request_id or meta.id.replace("-", "_", 1)
        meta = replace(meta, id=response_id, joint="_")
        prepend_conversation(request, chat, store)
        prompt = response_prompt(pipeline, request, chat)
        if self.rules.clips_limits and accepted.requested is not None:
            limits = pipeline.limits
            accepted.requested = limits.max_reply_tokens(len(prompt.ids), accepted.requested)
        check_room(len(prompt.ids), pipeline.limits.max_model_len)
        options = self._options(request, prompt.ids, meta)
        stored = None
        if request.store and store.enabled:
            from app.extensions.responses.stored_response import StoredResponse

            queued = replace(options.response, status="queued")
            events: list[bytes] | None = None
            if request.background and chat.stream:
                events = []
            stored = StoredResponse(
                id=response_id,
                status=queued.status,
                body=b"",
                conversation=encode_to_keep(chat.messages),
                events=events,
                end_of_events=self.end_of_events,
                encode=pipeline.version.shape.encode,
            )
            stored.update(queued)

        def store_final(response: wire.ResponseObject) -> None:
            if stored is not None:
                stored.update(response)
                if not request.background:
                    store.store(stored)

        writer = self._new_writer(options, store_final)
        responder: Responder | None = None
        if request.background and stored is not None:
            chat.stream = False  # a rejection by the engine sets the status, even for a stream
            from app.extensions.responses.background import BackgroundResponder

            responder = BackgroundResponder(
                engine=pipeline.responder.engine,
                load=pipeline.responder.load,
                headers=pipeline.responder.headers,
                keep_alive_s=pipeline.responder.keep_alive_s,
                stored=stored,
                store=store,
            )
        return pipeline.submit(accepted, meta, [prompt], writer, context, responder=responder)

    def _new_response(
        self, request: wire.ResponsesRequest, meta: ResponseMeta, max_output_tokens: int
    ) -> wire.ResponseObject:
        return new_response(request, meta, max_output_tokens)

    def _new_writer(
        self, options: ResponsesOptions, on_end: Callable[[wire.ResponseObject], None]
    ) -> ResponsesWriter:
        return ResponsesWriter(options, self._pipeline.identity.fresh_id, on_end)

    def _admit(
        self, chat: ResponsesChat, context: RequestContext
    ) -> ValidatedRequest[ResponsesChat]:
        """Admits the chat; an error names the field of the response instead of the chat's."""
        try:
            return self._pipeline.admit(chat, context)
        except ApiError as error:
            chat_name = "max_completion_tokens"
            name = "max_output_tokens"
            if error.param != chat_name:
                raise
            message = error.message.replace(chat_name, name)
            raise ApiError(error.status, error.type, message, name) from None

    def _options(
        self, request: wire.ResponsesRequest, prompt_ids: Sequence[int], meta: ResponseMeta
    ) -> ResponsesOptions:
        pipeline = self._pipeline
        limits = pipeline.limits
        max_output_tokens = limits.max_reply_tokens(len(prompt_ids), request.max_output_tokens)
        hides_tokens = limits.parses and not request.include_reasoning
        prompt_text = None
        if request.enable_response_messages:
            prompt_text = pipeline.tokenizer.decode(prompt_ids, False)
        return ResponsesOptions(
            response=self._new_response(request, meta, max_output_tokens),
            prompt_ids=prompt_ids,
            top_logprobs=None if hides_tokens else request.logprobs,
            token_id_names=pipeline.live.current.api.return_tokens_as_token_ids,
            metrics=pipeline.live.current.api.enable_per_request_metrics,
            shows_reasoning=request.include_reasoning,
            calls=called_tools(request.tools),
            parses=limits.parses,
            prompt_text=prompt_text,
            incomplete_items=self.rules.incomplete_items,
        )

    def retrieve_response(self, context: RequestContext) -> Response:
        """A stored response in its present state; with `?stream=true`, its events."""
        stored = self._store.get(context.params["response_id"])
        query = decode_query(context.query(), Retrieval)
        if not query.stream:
            return json_response(stored.body)
        if stored.events is None:
            raise bad_request("no events are stored for this response", "response_id")
        events = stored.follow(max(0, query.starting_after + 1), context.connection)
        return Response(events, 200, self._pipeline.responder.headers, EVENT_STREAM)

    def cancel_response(self, context: RequestContext) -> Response:
        """Ends a response that is being generated in the background."""
        stored = self._store.get(context.params["response_id"])
        stored.cancel()
        return json_response(stored.body)


def check_room(prompt_tokens: int, max_model_len: int) -> None:
    """Raises `ApiError` for a prompt that leaves no token of the context for the output."""
    if prompt_tokens >= max_model_len:
        message = (
            f"The engine prompt length {prompt_tokens} exceeds the max_model_len {max_model_len}. "
            "Please reduce prompt."
        )
        raise invalid(message, "input")


def prepend_conversation(
    request: wire.ResponsesRequest, chat: ResponsesChat, store: ResponseStore
) -> None:
    """Inserts the stored conversation before the input.

    Raises:
        ApiError: for an unknown response, a long conversation, or without a store.
        MemoryFullError, MemoryExceededError: as `claim_memory`.
    """
    if request.background and not store.enabled:
        raise invalid(
            "This vLLM engine does not support `store=True` and therefore does not support the "
            "background mode. To enable these features, set the environment variable "
            "`VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.",
            "background",
        )
    if request.previous_response_id is None:
        return
    if request.previous_input_messages:
        raise invalid(
            "Only one of `previous_input_messages` and `previous_response_id` can be set.",
            "previous_response_id",
        )
    previous = store.get(request.previous_response_id)
    previous.claim_history()
    prepend_history(chat, previous.messages, previous.items())


def response_prompt(
    pipeline: RequestPipeline,
    request: wire.ResponsesRequest,
    chat: ChatCompletionRequest,
    *,
    renders_only: bool = False,
) -> BuiltPrompt:
    """Returns the conversation as tokens; with `renders_only`, no reply follows.

    Truncation "auto" keeps as many of the last tokens as fit the context. They leave room for one
    token if the output has a limit.
    """
    if request.truncation == "auto":
        chat.truncate_prompt_tokens = -1
        chat.truncation_side = "left"
    messages = prompt_messages(chat.messages)
    prompt = chat_prompt(pipeline, chat, messages, renders_only=renders_only)
    return replace(prompt, echo_text=echo_text(request.input), turns=())
