"""Responses as vLLM writes them: one JSON, or named server-sent events (vllm-api.md section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from app.api.errors import as_stream_error
from app.api.identity import ResponseMeta
from app.api.logprobs import ItemLogprobs, rendered
from app.api.pieces import Holes
from app.api.responses.events import Calls, EventWriter, item_of
from app.api.writer import ResponseWriter, Segment
from app.engine.outputs import EngineOutput, Failed, Part, Started, Tokens
from app.http.errors import bad_request
from app.protocol.common import ECTransferParams, KVTransferParams, encode
from app.protocol.response_object import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    RawMessage,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from app.protocol.responses import ResponsesRequest, TextConfig

ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""What an error of this status is called in a response; others are the server's."""
STATUS = {"length": "incomplete", "abort": "cancelled", "content_filter": "incomplete"}
"""What a response is after an end of this kind; after any other it is completed."""
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete after an end of this kind."""


class ResponsesOptions(Struct, frozen=True, kw_only=True):
    """What one response tells besides its items."""

    response: ResponseObject
    """As `new_response` makes it."""
    prompt_ids: Sequence[int]
    top_logprobs: int | None = None
    """Alternatives of each token of a message; None without log probabilities."""
    token_id_names: bool = False
    """Log probabilities name tokens `token_id:N`."""
    shows_reasoning: bool = True
    calls: Calls = MappingProxyType({})
    parses: bool = False
    """Thoughts or calls are parsed out of the text: a reply that shows nothing is then no message at all."""
    transfer: KVTransferParams | None = None
    """`kv_transfer_params` of the answer."""
    encoded_media: ECTransferParams | None = None
    """`ec_transfer_params` of the answer."""
    metrics: bool = False
    """`enable-per-request-metrics` of the server"""
    prompt_text: str | None = None
    """The answer repeats prompt and reply as texts and token ids (`enable_response_messages`)."""


class ResponsesWriter(ResponseWriter):
    """Writes the answer to one request; `new_id` draws the ids of items.

    `ended`, if there is one, gets the response in its last state, unless the answer is whole and fails.
    """

    def __init__(
        self,
        options: ResponsesOptions,
        new_id: Callable[[], str],
        ended: Callable[[ResponseObject], None] | None = None,
    ) -> None:
        super().__init__(1)
        self._options = options
        self._new_id = new_id
        self._ended = ended
        self._logprobs = None
        if options.top_logprobs is not None:
            self._logprobs = ItemLogprobs(options.top_logprobs, options.token_id_names)
        self._events = EventWriter(self._logprobs, options.calls)
        self._message: Segment | None = None
        """The message that goes on, if nothing but its texts is to be written."""
        self._plain = options.top_logprobs is None and options.prompt_text is None
        self._opened = False

    def chunk(self, output: EngineOutput) -> bytes:
        message = self._message
        if (
            message is None
            or type(output) is not Tokens
            or output.part is not None
            or output.finish is not None
        ):
            return b"".join(self.events(output))
        if len(output.texts) != 1 or not output.texts[0]:
            return b"".join(self.events(output))
        # Nearly every output of a paced stream comes here.
        self.choices[0].tokens += 1
        message.texts += output.texts
        return self._events.delta(output.texts[0])

    def closing(self) -> bytes:
        return b"".join(self.last_events())

    def opening(self) -> list[bytes]:
        """The events that a stream begins with; none when they have been written."""
        if self._opened:
            return []
        self._opened = True
        response = self._options.response
        return [self._events.of_response(kind, response) for kind in ("created", "in_progress")]

    def events(self, output: EngineOutput) -> list[bytes]:
        """The server-sent events that tell of `output`, one by one."""
        if type(output) is Tokens:
            segment = self._take(output)
            if segment is None:
                return []
            self._message = segment if self._plain and segment.part is None else None
            return [*self._events.tokens(segment, output)]
        if type(output) is Started:
            self.begin(output)
            return self.opening()
        assert type(output) is Failed
        self.has_failed = True
        response = replace(self._options.response, status="failed", error=_error(output.error))
        self._end(response)
        return [*self.opening(), self._events.of_response("failed", response)]

    def last_events(self) -> list[bytes]:
        """What ends the stream, one by one."""
        if self.has_failed:
            return []
        last = [*self._events.closing()]
        response = self._last_state(self._events.items)
        self._end(response)
        return [*last, self._events.of_response("completed", response)]

    def take(self, output: EngineOutput) -> None:
        if type(output) is not Tokens:
            super().take(output)
            return
        if self.choices[0].cut_off(output, self._own_id):
            return
        segment = self._take(output)
        if segment is not None and segment.part is None and output.logprobs is not None:
            segment.logprobs.append(output.logprobs)

    def _take(self, output: Tokens) -> Segment | None:
        """Add the tokens; the item that they went to, or None when they show nothing."""
        choice, options, part = self.choices[0], self._options, output.part
        if options.prompt_text is not None:
            choice.ids += output.ids
        if part is not None and part.kind == "reasoning" and not options.shows_reasoning:
            choice.count(output)
            return None
        segment = choice.shown(output, self._own_id)
        if segment is not None:
            segment.texts += output.texts
        return segment

    def _own_id(self, part: Part | None) -> str:
        return self._new_id()

    def whole(self, holes: Holes) -> ResponseObject:
        """Its last state; when that is long, `ended` gets it with the last piece of its items."""
        choice, options = self.choices[0], self._options
        if not choice.segments and not options.parses:
            choice.begin(None, self._new_id())
        own_holes = Holes()
        items = [_item(segment, self._logprobs, own_holes, options.calls) for segment in choice.segments]
        response = self._last_state(items)
        if not own_holes.fillings:
            self._end(response)
            return response
        return replace(response, output=holes.later(self._written(response, own_holes)))

    def _written(self, response: ResponseObject, holes: Holes) -> Iterator[bytes]:
        """The items in pieces; then the response has them all."""
        kept: list[bytes] = []
        for piece in holes.written(response.output):
            if self._ended is not None:
                kept.append(piece)
            yield piece
        if self._ended is not None:
            self._ended(replace(response, output=Raw(b"".join(kept))))

    def _end(self, response: ResponseObject) -> None:
        if self._ended is not None:
            self._ended(response)

    def _last_state(self, items: Sequence[OutputItem] | Sequence[Raw]) -> ResponseObject:
        """The response when all has been said."""
        choice, options = self.choices[0], self._options
        reason = choice.finish.reason
        status = STATUS.get(reason, "completed")
        prompt_tokens, tokens = self.usage.told(len(options.prompt_ids), choice.tokens)
        usage = ResponseUsage(
            prompt_tokens,
            InputTokensDetails(self.told_cached, self.told_created),
            tokens,
            OutputTokensDetails(choice.reasoning_tokens),
            prompt_tokens + tokens,
        )
        response = replace(
            options.response,
            incomplete_details=IncompleteDetails(INCOMPLETE[reason]) if status == "incomplete" else None,
            output=items,
            status=status,
            usage=usage,
            metrics=(self.timing() or UNSET) if options.metrics else UNSET,
            kv_transfer_params=options.transfer,
            ec_transfer_params=options.encoded_media,
        )
        if options.prompt_text is not None:
            said = "".join(segment.text for segment in choice.segments)
            response.input_messages = [RawMessage(options.prompt_text, options.prompt_ids)]
            response.output_messages = [RawMessage(said, choice.ids)]
        return response


def _item(segment: Segment, logprobs: ItemLogprobs | None, holes: Holes, calls: Calls) -> OutputItem:
    """Returns the item as a whole response has it, where thoughts have no status."""
    status = None if segment.kind == "reasoning" else "completed"
    if segment.part is None and not any(segment.texts):
        return item_of(segment, status, None)
    text = holes.text(segment.texts)
    if logprobs is None or segment.part is not None:
        return item_of(segment, status, text, calls=calls)
    return item_of(segment, status, text, rendered(segment.logprobs, logprobs.entries, holes))


def _error(error: Exception) -> ResponseError:
    """`error` of a response that has failed."""
    known = as_stream_error(error)
    # A message may quote a lone surrogate of the client.
    message = known.message.encode("utf-8", "replace").decode()
    return ResponseError(ERROR_CODES.get(known.status, "server_error"), message)


def new_response(asked: ResponsesRequest, meta: ResponseMeta, most_tokens: int) -> ResponseObject:
    """The response to `asked`, in progress and without output; at most `most_tokens` will be generated.

    RecursionError when tools are nested too deeply. ApiError for nulls that a response cannot repeat.
    """
    if asked.background is None or asked.truncation is None:
        raise bad_request("The response cannot repeat a null: leave background and truncation out.")
    return ResponseObject(
        id=meta.id,
        created_at=meta.created,
        instructions=asked.instructions,
        metadata=asked.metadata,
        model=meta.model,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        temperature=_default(asked.temperature, 1.0),
        tool_choice=_rendered(asked.tool_choice),
        tools=_rendered(asked.tools),
        top_p=_default(asked.top_p, 1.0),
        background=asked.background,
        max_output_tokens=most_tokens,
        max_tool_calls=asked.max_tool_calls,
        previous_response_id=asked.previous_response_id,
        reasoning=asked.reasoning,
        service_tier=asked.service_tier,
        text=_rendered(_text(asked.text)),
        top_logprobs=asked.logprobs,
        truncation=asked.truncation,
        user=asked.user,
        presence_penalty=_default(asked.presence_penalty, 0.0),
        frequency_penalty=_default(asked.frequency_penalty, 0.0),
    )


def _rendered(value: object) -> Raw:
    """What a request may nest deeply, as JSON: a stream tells it three times."""
    return Raw(encode(value))


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


def _text(config: TextConfig | None) -> dict[str, object] | None:
    if config is None:
        return None
    return {"format": config.format and config.format.told(), "verbosity": config.verbosity}
