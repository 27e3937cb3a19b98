"""Responses as vLLM writes them: one JSON body, or numbered server-sent events.

Items are messages, thoughts and tool calls. Tokens of one part make one item.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from app.core.api.choice_state import Segment
from app.core.api.errors import as_stream_error
from app.core.api.logprobs import rendered
from app.core.engine.outputs import Started, TokenLogprob, Tokens
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import GAP, HOLE, encode
from app.extensions.responses.item_names import ItemNames
from app.extensions.responses.items import CUSTOM_CALL, Calls, Logprobs, content_of, item_of
from app.extensions.responses.protocol import ResponseObject
from app.extensions.responses.tools import custom_input
from app.shared.block_writer import BlockWriter, named_event

TEXT_EVENTS = {
    "text": "output_text",
    "reasoning": "reasoning_text",
    "call": "function_call_arguments",
}
"""Names of the events of a text, by the kind of its segment."""
ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Error codes of a response by status; other statuses are `server_error`."""
STATUS = {"length": "incomplete", "abort": "cancelled", "content_filter": "incomplete"}
"""Status of a response by its finish reason; after any other reason it is completed."""
INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete response, by its finish reason."""


class ResponsesOptions(Struct, frozen=True, kw_only=True):
    """Content of a response, from the request and the settings of the server."""

    response: ResponseObject
    prompt_ids: Sequence[int]
    top_logprobs: int | None = None
    """Alternatives of each token of a message; None without log probabilities."""
    token_id_names: bool = False
    shows_reasoning: bool = True
    calls: Calls = {}
    parses: bool = False
    """Thoughts or calls are parsed out of the text: a reply that shows nothing has no message."""
    metrics: bool = False
    prompt_text: str | None = None
    """The answer repeats prompt and reply as texts and token ids (`enable_response_messages`)."""
    incomplete_items: bool = False
    """Streams and last items of incomplete replies have the status `incomplete`."""


class ResponsesWriter(BlockWriter):
    """Writes the answer to one request; `new_id` draws the ids of items.

    `on_end` receives the final response, unless the answer is whole and fails. A stream renders
    everything when it comes, so its end only joins pieces.
    """

    text_events: ClassVar[Mapping[str, str]] = TEXT_EVENTS
    token_names: ClassVar[type[ItemNames]] = ItemNames
    follows_rank = False

    def __init__(
        self,
        options: ResponsesOptions,
        new_id: Callable[[], str],
        on_end: Callable[[ResponseObject], None],
    ) -> None:
        super().__init__(new_id)
        self._options = options
        self._on_end = on_end
        self._logprobs: ItemNames | None = None
        if options.top_logprobs is not None:
            self._logprobs = self.token_names(options.top_logprobs, options.token_id_names)
        self._event_count = 0
        self._item_id = ""
        self._is_custom = False
        self._template: list[bytes] = []
        """The event of a piece of the open item's text, cut at the text, the log probabilities
        and the sequence number.
        """
        self._held_logprobs: list[TokenLogprob] = []
        """Log probabilities of tokens that show nothing, until a token shows something."""
        self._entries: list[bytes] = []
        self._items: list[Raw] = []
        self._end_status = "completed"
        """Status of the item that ends next."""

    def _render_start(self, output: Started) -> bytes:
        self.record_start(output)
        return self._opening()

    def _opening(self) -> bytes:
        """Returns the first events, unless they have been rendered."""
        if self._event_count:
            return b""
        response = Raw(self.encode(self._options.response))
        return b"".join(
            [self._numbered(kind, response=response) for kind in ("created", "in_progress")]
        )

    def _append(self, output: Tokens) -> Segment | None:
        part = output.part
        if part is not None and part.kind == "reasoning" and not self._options.shows_reasoning:
            self.choices[0].count(output)
            return None
        segment = super()._append(output)
        if segment is not None and part is None and output.logprobs is not None:
            segment.logprobs.append(output.logprobs)
        return segment

    def _render_block_start(self, segment: Segment) -> bytes:
        item = self._item(segment, status="in_progress", text=None, logprobs=None)
        self._item_id = str(item["id"])
        self._is_custom = item["type"] == CUSTOM_CALL
        fields: dict[str, object] = {
            "delta": HOLE,
            "sequence_number": HOLE,
            "item_id": self._item_id,
            "output_index": self._index,
        }
        if segment.kind != "call":
            fields["content_index"] = 0
        if segment.part is None:
            fields["logprobs"] = () if self._logprobs is None else HOLE
        self._template = _event(f"{self.text_events[segment.kind]}.delta", fields).split(GAP)
        added = self._numbered("output_item.added", item=item, output_index=self._index)
        if segment.kind == "call":
            return added
        part = self._content(segment, "", ())
        return added + self._item_event("content_part.added", part=part, content_index=0)

    def _render_texts(self, segment: Segment, output: Tokens) -> bytes:
        logprobs = self._logprobs
        if logprobs is None or segment.part is not None or output.logprobs is None:
            if self._is_custom:
                return b""
            return b"".join([self._delta(text) for text in output.texts if text])
        events = []
        for text, entry in zip(output.texts, output.logprobs, strict=True):
            self._entries.append(encode(logprobs.item_entry(entry)))
            self._held_logprobs.append(entry)
            if text:
                events.append(self._delta(text))
        return b"".join(events)

    def _delta(self, text: str) -> bytes:
        """Returns the event of a piece of text, with the log probabilities that were held back."""
        start, *before_logprobs, before_number, end = self._template
        if before_logprobs and self._logprobs is not None:
            entries = [*map(self._logprobs.event_entry, self._held_logprobs)]
            self._held_logprobs = []
            before_number = b"%b%b%b" % (before_logprobs[0], encode(entries), before_number)
        return b"%b%b%b%d%b" % (start, encode(text), before_number, self._next_number(), end)

    def _render_block_end(self, segment: Segment) -> bytes:
        events: list[bytes] = []
        if self._held_logprobs:
            events.append(self._delta(""))
        text = Raw(encode(segment.text))
        logprobs: Raw | None = None
        if self._entries:
            logprobs = Raw(b"[%b]" % b",".join(self._entries))
        self._entries = []
        events += self._text_end(segment, text)
        if segment.kind != "call":
            part = self._content(segment, text, logprobs)
            events.append(self._item_event("content_part.done", part=part, content_index=0))
        item = self._item(segment, status=self._end_status, text=text, logprobs=logprobs)
        events.append(self._numbered("output_item.done", item=item, output_index=self._index))
        self._items.append(Raw(encode(item)))
        return b"".join(events)

    def _item(
        self, segment: Segment, *, status: str | None, text: str | Raw | None, logprobs: Logprobs
    ) -> JsonObject:
        """Returns the item of a segment; `text` is None while it is in progress."""
        return item_of(
            segment, status=status, text=text, logprobs=logprobs, calls=self._options.calls
        )

    def _content(self, segment: Segment, text: str | Raw, logprobs: Logprobs) -> JsonObject:
        """Returns the content part of a segment."""
        return content_of(segment, text, logprobs)

    def _text_end(self, segment: Segment, text: Raw) -> Iterator[bytes]:
        if self._is_custom:
            # The input of a custom tool comes at the end, when its JSON is complete.
            tool_input = custom_input(segment.text)
            if tool_input:
                yield self._item_event("custom_tool_call_input.delta", delta=tool_input)
            yield self._item_event("custom_tool_call_input.done", input=tool_input)
        elif segment.part is not None and segment.kind == "call":
            called = self._options.calls.get(segment.part.name, segment.part)
            yield self._item_event("function_call_arguments.done", arguments=text, name=called.name)
        else:
            fields: dict[str, object] = {"text": text, "content_index": 0}
            if segment.part is None:
                fields["logprobs"] = ()
            yield self._item_event(f"{self.text_events[segment.kind]}.done", **fields)

    def _item_event(self, kind: str, **fields: object) -> bytes:
        return self._numbered(kind, item_id=self._item_id, output_index=self._index, **fields)

    def _numbered(self, kind: str, **fields: object) -> bytes:
        return _event(kind, fields | {"sequence_number": self._next_number()})

    def _next_number(self) -> int:
        number = self._event_count
        self._event_count = number + 1
        return number

    def _render_failure(self, error: Exception) -> bytes:
        api_error = as_stream_error(error)
        response = replace(
            self._options.response,
            status="failed",
            error={
                "code": ERROR_CODES.get(api_error.status, "server_error"),
                "message": api_error.message,
            },
        )
        self._on_end(response)
        return self._opening() + self._numbered("failed", response=Raw(self.encode(response)))

    def closing(self) -> bytes:
        """Returns the end of the stream."""
        if self.has_failed:
            return b""
        self._end_status = self._last_status()
        end = self._close_block()
        response = self._final_response(self._items)
        kind = "completed"
        if self._options.incomplete_items and response.status == "incomplete":
            kind = "incomplete"
        return end + self._numbered(kind, response=Raw(self.encode(response)))

    def _last_status(self) -> str:
        """Returns the status of the last item."""
        if self._options.incomplete_items and self.choices[0].finish.reason == "length":
            return "incomplete"
        return "completed"

    def whole(self) -> ResponseObject:
        """Returns the whole answer, once all outputs are collected."""
        choice = self.choices[0]
        if not choice.segments and not self._options.parses:
            choice.open_segment(None, self._segment_id)
        items = []
        status = "completed"
        for segment in choice.segments:
            if segment is choice.segments[-1]:
                status = self._last_status()
            logprobs = None
            if segment.part is None and self._logprobs is not None:
                logprobs = rendered(segment.logprobs, self._logprobs.item_entry)
            item = self._item(
                segment,
                status=None if segment.kind == "reasoning" else status,
                text=segment.text,
                logprobs=logprobs,
            )
            items.append(item)
        return self._final_response(items)

    def _final_response(self, items: Sequence[JsonObject] | Sequence[Raw]) -> ResponseObject:
        """Passes the final response to `on_end` and returns it."""
        response = self._ended_response(items)
        self._on_end(response)
        return response

    def _ended_response(self, items: Sequence[JsonObject] | Sequence[Raw]) -> ResponseObject:
        """Returns the response in its last state, with its items and its usage."""
        choice = self.choices[0]
        options = self._options
        reason = choice.finish.reason
        status = STATUS.get(reason, "completed")
        incomplete_details = None
        if status == "incomplete":
            incomplete_details = {"reason": INCOMPLETE_REASONS[reason]}
        response = replace(
            options.response,
            incomplete_details=incomplete_details,
            output=items,
            status=status,
            usage=self._response_usage(),
            metrics=UNSET,
            kv_transfer_params=self.transfer,
            ec_transfer_params=self.encoded_media,
        )
        if options.metrics:
            response.metrics = self.timing() or UNSET
        if options.prompt_text is not None:
            prompt: JsonObject = {
                "message": options.prompt_text,
                "tokens": options.prompt_ids,
                "type": "raw_message_tokens",
            }
            reply: JsonObject = {
                "message": "".join(segment.text for segment in choice.segments),
                "tokens": choice.ids,
                "type": "raw_message_tokens",
            }
            response.input_messages = [prompt]
            response.output_messages = [reply]
        return response

    def _response_usage(self) -> JsonObject:
        """Returns the token counts; lists by turn belong to servers that call tools themselves."""
        choice = self.choices[0]
        prompt_tokens, tokens = self.usage.override(len(self._options.prompt_ids), choice.tokens)
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.reported_cached_tokens,
                "cache_write_tokens": self.reported_created_tokens,
                "input_tokens_per_turn": (),
                "cached_tokens_per_turn": (),
            },
            "output_tokens": tokens,
            "output_tokens_details": {
                "reasoning_tokens": choice.reasoning_tokens,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": (),
                "tool_output_tokens_per_turn": (),
            },
            "total_tokens": prompt_tokens + tokens,
        }


def _event(kind: str, fields: Mapping[str, object]) -> bytes:
    """Returns the event `response.<kind>`; its keys are in alphabetical order, as in vLLM."""
    name = f"response.{kind}"
    return named_event(name, dict(sorted([*fields.items(), ("type", name)])))
