"""POST /v1/responses, routes to read, follow and cancel a response, and the responses that are
kept.

See vllm-api.md section 6. A response in the background is kept from its beginning: the client
receives a state, and comes back for more. No greenlet waits for it: each output of the engine
changes the kept state and wakes all followers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cachetools import LRUCache
from gevent.event import Event as Bell
from msgspec import Raw, Struct
from msgspec.json import decode
from msgspec.structs import replace

from app.engine.core.outputs import EngineOutput, Failed, Started, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.chat.prompt import chat_prompt
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.responder import Responder
from app.serving.api.responses.writer import ResponsesOptions, ResponsesWriter, new_response
from app.serving.api.writer import ResponseWriter
from app.serving.http.client_connection import ClientConnection, watched
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import EVENT_STREAM, Response, json_response
from app.serving.http.route import STREAM_MEDIA, Route, RouteDocs, get, post
from app.serving.protocol import responses as wire
from app.serving.protocol.chat import ChatCompletionRequest, Message
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import encode, encode_to_keep
from app.serving.protocol.decoding import decode_query
from app.serving.protocol.response_chat import (
    ResponsesChat,
    chat_request,
    echo_text,
    prepend_history,
)
from app.serving.protocol.response_tools import called_tools

MOST_RESPONSES = 1000
MOST_BYTES = 256 << 20
ENTRY_BYTES = 550
"""Memory of a kept response besides its JSON and events, in bytes; measured."""
EVENT_BYTES = 48
"""Memory of an event besides its text, in bytes: the object's head and its place in a list."""
UNFINISHED = ("queued", "in_progress")
END_OF_EVENT = b"\n\n"


class Output(Struct):
    """The part of a response that a conversation goes on from."""

    output: list[JsonObject]


@dataclass(slots=True)
class KeptResponse:
    """A response in its present state, and the messages that it answers, both as JSON.

    JSON has a known size. Decoded objects take several times as much, and their `Raw` fields hold
    on to the whole body of the request.

    `events` and `abort` belong to a generation in the background; `events` only if the client wants
    them.
    """

    id: str
    status: str
    body: bytes
    """The response as JSON."""
    conversation: bytes
    """The messages as JSON."""
    events: list[bytes] | None = None
    """Rendered events; an event's index is its sequence number."""
    abort: Callable[[], None] | None = None
    over: bool = False
    changed: Bell = field(default_factory=Bell)
    """Rings once, at the next change of the events; followers then wait for the next bell."""

    @classmethod
    def of(
        cls,
        response: wire.ResponseObject,
        messages: Sequence[Message],
        events: list[bytes] | None = None,
    ) -> "KeptResponse":
        return cls(
            response.id, response.status, encode_to_keep(response), encode_to_keep(messages), events
        )

    @property
    def size(self) -> int:
        """Memory of this response, in bytes."""
        events = self.events or ()
        events_bytes = sum(map(len, events)) + EVENT_BYTES * len(events)
        return ENTRY_BYTES + len(self.body) + len(self.conversation) + events_bytes

    @property
    def messages(self) -> list[Message]:
        return decode(self.conversation, type=list[Message])

    def items(self) -> list[JsonObject]:
        """Returns the items of the response's output."""
        return decode(self.body, type=Output).output

    def update(self, response: wire.ResponseObject) -> None:
        """Replaces the state."""
        self.status = response.status
        self.body = encode_to_keep(response)

    def update_status(self, status: str) -> None:
        """Replaces the status alone."""
        fields = decode(self.body, type=dict[str, Raw])
        fields["status"] = Raw(encode(status))
        self.status = status
        self.body = encode_to_keep(fields)

    def add(self, events: bytes, over: bool = False) -> None:
        if self.events is not None:
            self.events += [event + END_OF_EVENT for event in events.split(END_OF_EVENT)[:-1]]
        self.over = over
        if over:
            self.abort = None  # it holds on to the whole request
        self.ring()

    def ring(self) -> None:
        self.changed.set()
        self.changed = Bell()

    def follow(self, start: int, connection: ClientConnection | None) -> Iterator[bytes]:
        """Yields the events from number `start` on as they come, until the end or until the client
        leaves.
        """
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            self.ring()

        yield b""  # the status line leaves at once
        with watched(connection, leave):
            while not gone:
                changed, events = self.changed, (self.events or [])[start:]
                start += len(events)
                if events:
                    yield b"".join(events)
                elif self.over:
                    return
                else:
                    changed.wait()

    def cancel(self) -> None:
        """Ends the generation. ApiError 400 when it is over, or was never in the background."""
        if self.abort is None or self.status not in UNFINISHED:
            raise invalid("The response is not being generated in the background.", "response_id")
        self.abort()
        self.update_status("cancelled")
        self.add(b"", over=True)


class ResponseStore:
    """Keeps up to `most` responses and `most_bytes`; forgets the least recently used one first.

    Without `keeps` the store is always empty.
    """

    def __init__(
        self, keeps: bool, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES
    ) -> None:
        self.keeps = keeps
        self.limit_bytes = most_bytes
        self._most = most
        # A response that is larger than the store takes all of its room.
        self._kept: LRUCache[str, KeptResponse] = LRUCache(
            most_bytes, lambda kept: min(kept.size, most_bytes)
        )

    @property
    def size_bytes(self) -> int:
        return int(self._kept.currsize)

    def get(self, response_id: str) -> KeptResponse:
        """Returns the response of this id. ApiError 404 for an unknown or forgotten one."""
        kept = self._kept.get(response_id)
        if kept is None:
            raise invalid(f"There is no response {response_id[:80]!r} here.", "response_id", 404)
        return kept

    def keep(self, kept: KeptResponse) -> None:
        if not self.keeps:
            return
        self._kept[kept.id] = kept
        while len(self._kept) > self._most:
            self._kept.popitem()

    def weigh(self, kept: KeptResponse) -> None:
        """Updates the size of a response that has changed; no effect on a forgotten one."""
        if self._kept.get(kept.id) is kept:
            self.keep(kept)


def invalid(message: str, param: str, status: int = 400) -> ApiError:
    return ApiError(status, "invalid_request_error", message, param)


@dataclass(frozen=True, slots=True)
class Background(Responder):
    """Responds with the present state of `kept`; the engine's outputs are added there as they come."""

    kept: KeptResponse
    store: ResponseStore

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns the response before its first output; or its events, if they are kept.

        Raises EngineError as `EngineClient.submit` does, and then keeps nothing.
        """
        kept = self.kept
        first = kept.body

        def emit(output: EngineOutput) -> None:
            if type(output) is Started:
                kept.update_status("in_progress")
            events = writer.chunk(output)
            over = type(output) is Failed or (type(output) is Tokens and output.finish is not None)
            kept.add(events + writer.closing() if over else events, over)
            if over:
                self.store.weigh(kept)

        abort = self.engine.submit(requests, emit).abort
        if not kept.over:
            kept.abort = abort
        self.store.keep(kept)
        if kept.events is None:
            return json_response(first, 200, self.headers)
        return Response(kept.follow(0, context.connection), 200, self.headers, EVENT_STREAM)


class Retrieval(Struct, kw_only=True):
    starting_after: int = -1
    stream: bool | None = False


def routes(pipeline: RequestPipeline, store: ResponseStore) -> list[Route]:

    def create_response(context: RequestContext) -> Response:
        """The answer to some input: whole, as a stream, or in the background."""
        asked = pipeline.decode(context, wire.ResponsesRequest)
        chat = chat_request(asked)
        try:
            accepted = pipeline.admit(chat, context)
        except ApiError as error:
            own, name = "max_completion_tokens", "max_output_tokens"
            if error.param != own:
                raise
            raise ApiError(
                error.status, error.type, error.message.replace(own, name), name
            ) from None
        head = pipeline.identity.response_meta("resp", context, "", accepted.model)
        head = replace(head, id=asked.request_id or head.id.replace("-", "_", 1), joint="_")
        _follow_on(asked, chat, store)
        prompt = response_prompt(pipeline, asked, chat)
        shape = _shape(pipeline, asked, prompt.ids, head)
        kept = None
        if asked.store and store.keeps:
            queued = replace(shape.response, status="queued")
            events = list[bytes]() if asked.background and chat.stream else None
            kept = KeptResponse.of(queued, chat.messages, events)

        def end(response: wire.ResponseObject) -> None:
            if kept is not None:
                kept.update(response)
                if not asked.background:
                    store.keep(kept)

        answer, responder = ResponsesWriter(shape, pipeline.identity.fresh_id, end), None
        if asked.background and kept is not None:
            chat.stream = False  # a refusal by the engine sets the status, even for a stream
            at = pipeline.responder
            responder = Background(at.engine, at.load, at.headers, at.keep_alive_s, kept, store)
        return pipeline.submit(accepted, head, [prompt], answer, context, responder=responder)

    def retrieve_response(context: RequestContext) -> Response:
        """A kept response as it is now; or, with `?stream=true`, its events."""
        kept, query = (
            store.get(context.params["response_id"]),
            decode_query(context.query(), Retrieval),
        )
        if not query.stream:
            return json_response(kept.body)
        if kept.events is None:
            raise bad_request("no events are kept of this response", "response_id")
        body = kept.follow(max(0, query.starting_after + 1), context.connection)
        return Response(body, 200, pipeline.responder.headers, EVENT_STREAM)

    def cancel_response(context: RequestContext) -> Response:
        """Ends a response that is being generated in the background."""
        kept = store.get(context.params["response_id"])
        kept.cancel()
        return json_response(kept.body)

    create_docs = RouteDocs(
        body=(wire.ResponsesRequest,),
        example={"input": "hello"},
        answer=wire.ResponseObject,
        media=STREAM_MEDIA,
    )
    retrieve_docs = RouteDocs(query=Retrieval, answer=wire.ResponseObject, media=STREAM_MEDIA)
    cancel_docs = RouteDocs(answer=wire.ResponseObject)
    return [
        post("/v1/responses", create_response, docs=create_docs),
        get("/v1/responses/{response_id}", retrieve_response, docs=retrieve_docs),
        post("/v1/responses/{response_id}/cancel", cancel_response, docs=cancel_docs),
    ]


def _follow_on(asked: wire.ResponsesRequest, chat: ResponsesChat, store: ResponseStore) -> None:
    """Puts the conversation so far before the input.

    ApiError for an unknown response, or without a store.
    """
    if asked.background and not store.keeps:
        missing = (
            "background needs kept responses, and enable-responses-store is off on this server."
        )
        raise invalid(missing, "background")
    if asked.previous_response_id is None:
        return
    if asked.previous_input_messages:
        both = "previous_input_messages and previous_response_id exclude each other."
        raise invalid(both, "previous_response_id")
    before = store.get(asked.previous_response_id)
    prepend_history(chat, before.messages, before.items())


def response_prompt(
    pipeline: RequestPipeline, asked: wire.ResponsesRequest, chat: ChatCompletionRequest
) -> BuiltPrompt:
    """Returns the conversation as tokens; truncation "auto" keeps as many last tokens as leave
    room.
    """
    if asked.truncation == "auto":
        room = pipeline.limits.max_model_len - max(asked.max_output_tokens or 1, 1)
        chat.truncate_prompt_tokens, chat.truncation_side = max(room, 1), "left"
    prompt = chat_prompt(pipeline, chat, chat.messages)
    return replace(prompt, echo_text=echo_text(asked.input), turns=())


def _shape(
    pipeline: RequestPipeline, asked: wire.ResponsesRequest, ids: Sequence[int], head: ResponseMeta
) -> ResponsesOptions:
    most_tokens = pipeline.limits.max_reply_tokens(len(ids), asked.max_output_tokens)
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
        prompt_text=pipeline.tokenizer.decode(ids, False)
        if asked.enable_response_messages
        else None,
    )
