"""Responses as vLLM writes them: one JSON body, or numbered server-sent events (vllm-api.md section
6).

Items are messages, thoughts and function calls. Tokens of one part make one item.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from app.engine.core.outputs import Started, TokenLogprob, Tokens
from app.serving.api.errors import as_stream_error
from app.serving.api.identity import ResponseMeta
from app.serving.api.logprobs import TokenNames, rendered
from app.serving.api.writer import BlockWriter, Segment, named_event
from app.serving.http.errors import bad_request
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import GAP, HOLE, encode
from app.serving.protocol.response_tools import CalledTool, custom_input
from app.serving.protocol.responses import ResponseObject, ResponsesRequest

Logprobs = tuple[()] | Raw | None
ID_PREFIXES = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


Calls = Mapping[str, CalledTool]
"""Tools as the answer names them, by the function name that the model knows."""


def item_of(
    segment: Segment, status: str | None, text: str | Raw | None, logprobs: Logprobs, calls: Calls
) -> JsonObject:
    """Returns the item of a part of the reply; `text` is None while it is in progress."""
    own_id = ID_PREFIXES[segment.kind] + segment.id
    if segment.part is None:
        content = [_content(segment, text, logprobs)] if text is not None and segment.text else []
        end = {"role": "assistant", "status": status, "type": "message", "phase": None}
        return {"id": own_id, "content": content, **end}
    if segment.kind == "reasoning":
        thoughts = None if text is None else [_content(segment, text, None)]
        begin: JsonObject = {"id": own_id, "summary": (), "type": "reasoning"}
        return {**begin, "content": thoughts, "encrypted_content": None, "status": status}
    called = calls.get(segment.part.name, CalledTool(segment.part.name))
    call_id = segment.part.id or f"chatcmpl-tool-{segment.id}"
    if called.is_custom:
        payload = "" if text is None else custom_input(segment.text)
        begin = {"call_id": call_id, "input": payload, "name": called.name, "type": CUSTOM_CALL}
        return {
            **begin,
            "id": "ctc_" + segment.id,
            "async": None,
            "caller": None,
            "namespace": None,
        }
    begin = {"arguments": "" if text is None else text, "call_id": call_id, "name": called.name}
    middle = {"type": "function_call", "id": own_id, "async": None, "caller": None}
    return {**begin, **middle, "namespace": called.namespace, "status": status}


def _content(segment: Segment, text: str | Raw, logprobs: Logprobs) -> JsonObject:
    if segment.part is not None:
        return {"text": text, "type": "reasoning_text"}
    return {"annotations": (), "text": text, "type": "output_text", "logprobs": logprobs}


CUSTOM_CALL = "custom_tool_call"
TEXTS = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}


def _event(kind: str, fields: Mapping[str, object]) -> bytes:
    """Returns the event `response.<kind>`; its keys are in alphabetical order, as in vLLM."""
    name = f"response.{kind}"
    return named_event(name, dict(sorted([*fields.items(), ("type", name)])))


INPUT_TURNS: JsonObject = {"input_tokens_per_turn": (), "cached_tokens_per_turn": ()}
OUTPUT_TURNS: JsonObject = {"output_tokens_per_turn": (), "tool_output_tokens_per_turn": ()}
"""Lists of servers that call tools themselves."""
ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Error codes of a response by status; other statuses are `server_error`."""
STATUS = {"length": "incomplete", "abort": "cancelled", "content_filter": "incomplete"}
"""Status of a response by the kind of its end; after any other end it is completed."""
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete response, by the kind of its end."""


class ResponsesOptions(Struct, frozen=True, kw_only=True):
    response: ResponseObject
    prompt_ids: Sequence[int]
    top_logprobs: int | None = None
    """Alternatives of each token of a message; None without log probabilities."""
    token_id_names: bool = False
    shows_reasoning: bool = True
    calls: Calls = MappingProxyType({})
    parses: bool = False
    """Thoughts or calls are parsed out of the text: a reply that shows nothing has no message."""
    metrics: bool = False
    prompt_text: str | None = None
    """The answer repeats prompt and reply as texts and token ids (`enable_response_messages`)."""


class ResponsesWriter(BlockWriter):
    """Writes the answer to one request; `new_id` draws the ids of items.

    `ended` receives the final response, unless the answer is whole and fails. A stream renders
    everything when it comes, so its end only joins pieces.
    """

    def __init__(
        self,
        options: ResponsesOptions,
        new_id: Callable[[], str],
        ended: Callable[[ResponseObject], None] = lambda response: None,
    ) -> None:
        super().__init__(new_id)
        self._options, self._ended, self._logprobs = options, ended, None
        if options.top_logprobs is not None:
            self._logprobs = TokenNames(options.top_logprobs, options.token_id_names)
        self._number = 0
        self._item_id, self._is_custom = "", False
        self._template: list[bytes] = []
        """The event of a piece of the open item's text, cut at its text, log probabilities and
        number.
        """
        self._silent: list[TokenLogprob] = []
        """Log probabilities of tokens that show nothing, until a token shows something."""
        self._entries: list[bytes] = []
        self._items: list[Raw] = []

    def _start(self, output: Started) -> bytes:
        self.begin(output)
        return self._beginning()

    def _beginning(self) -> bytes:
        response = self._options.response
        kinds = () if self._number else ("created", "in_progress")
        return b"".join([self._numbered(kind, response=response) for kind in kinds])

    def _add(self, output: Tokens) -> Segment | None:
        part = output.part
        if part is not None and part.kind == "reasoning" and not self._options.shows_reasoning:
            self.choices[0].count(output)
            return None
        segment = super()._add(output)
        if segment is not None and part is None and output.logprobs is not None:
            segment.logprobs.append(output.logprobs)
        return segment

    def _begin_block(self, segment: Segment) -> bytes:
        item = item_of(segment, "in_progress", None, None, self._options.calls)
        self._item_id, self._is_custom = str(item["id"]), item["type"] == CUSTOM_CALL
        fields: dict[str, object] = {"delta": HOLE, "sequence_number": HOLE}
        if segment.kind != "call":
            fields["content_index"] = 0
        if segment.part is None:
            fields["logprobs"] = () if self._logprobs is None else HOLE
        place = {"item_id": self._item_id, "output_index": self._index}
        self._template = _event(f"{TEXTS[segment.kind]}.delta", fields | place).split(GAP)
        added = self._numbered("output_item.added", item=item, output_index=self._index)
        if segment.kind == "call":
            return added
        return added + self._item_event(
            "content_part.added", part=_content(segment, "", ()), content_index=0
        )

    def _texts(self, segment: Segment, output: Tokens) -> bytes:
        logprobs = self._logprobs
        if logprobs is None or segment.part is not None or output.logprobs is None:
            shown = () if self._is_custom else output.texts
            return b"".join([self._delta(text) for text in shown if text])
        events = []
        for text, entry in zip(output.texts, output.logprobs, strict=True):
            self._entries.append(encode(logprobs.item_entry(entry)))
            self._silent.append(entry)
            if text:
                events.append(self._delta(text))
        return b"".join(events)

    def _delta(self, text: str) -> bytes:
        """Returns the event of a piece of text, with the log probabilities that were held back."""
        begin, *logprobs, before, end = self._template
        if logprobs and self._logprobs is not None:
            shown, self._silent = [*map(self._logprobs.event_entry, self._silent)], []
            before = b"%b%b%b" % (logprobs[0], encode(shown), before)
        return b"%b%b%b%d%b" % (begin, encode(text), before, self._next(), end)

    def _end_block(self, segment: Segment) -> bytes:
        events = [self._delta("")] if self._silent else []
        text = Raw(encode(segment.text))
        logprobs = Raw(b"[%b]" % b",".join(self._entries)) if self._entries else None
        self._entries = []
        events += self._done(segment, text)
        if segment.kind != "call":
            part = _content(segment, text, logprobs)
            events.append(self._item_event("content_part.done", part=part, content_index=0))
        item = item_of(segment, "completed", text, logprobs, self._options.calls)
        events.append(self._numbered("output_item.done", item=item, output_index=self._index))
        self._items.append(Raw(encode(item)))
        return b"".join(events)

    def _done(self, segment: Segment, text: Raw) -> Iterator[bytes]:
        if self._is_custom:  # its input comes at the end, when its JSON is complete
            payload = custom_input(segment.text)
            if payload:
                yield self._item_event("custom_tool_call_input.delta", delta=payload)
            yield self._item_event("custom_tool_call_input.done", input=payload)
        elif segment.part is not None and segment.kind == "call":
            called = self._options.calls.get(segment.part.name, segment.part)
            yield self._item_event("function_call_arguments.done", arguments=text, name=called.name)
        else:
            fields: dict[str, object] = {"text": text, "content_index": 0}
            if segment.part is None:
                fields["logprobs"] = ()
            yield self._item_event(f"{TEXTS[segment.kind]}.done", **fields)

    def _item_event(self, kind: str, **fields: object) -> bytes:
        return self._numbered(kind, item_id=self._item_id, output_index=self._index, **fields)

    def _numbered(self, kind: str, **fields: object) -> bytes:
        return _event(kind, fields | {"sequence_number": self._next()})

    def _next(self) -> int:
        number = self._number
        self._number = number + 1
        return number

    def _failure(self, error: Exception) -> bytes:
        known = as_stream_error(error)
        told: JsonObject = {
            "code": ERROR_CODES.get(known.status, "server_error"),
            "message": known.message,
        }
        response = replace(self._options.response, status="failed", error=told)
        self._ended(response)
        return self._beginning() + self._numbered("failed", response=response)

    def closing(self) -> bytes:
        if self.has_failed:
            return b""
        return self._close() + self._numbered("completed", response=self._last_state(self._items))

    def whole(self) -> ResponseObject:
        choice, options = self.choices[0], self._options
        if not choice.segments and not options.parses:
            choice.begin(None, self._new_id())
        items = []
        for segment in choice.segments:
            logprobs = None
            if segment.part is None and self._logprobs is not None:
                logprobs = rendered(segment.logprobs, self._logprobs.item_entry)
            status = None if segment.kind == "reasoning" else "completed"
            items.append(item_of(segment, status, segment.text, logprobs, options.calls))
        return self._last_state(items)

    def _last_state(self, items: Sequence[JsonObject] | Sequence[Raw]) -> ResponseObject:
        """Returns the final response, once it is passed to `ended`."""
        choice, options = self.choices[0], self._options
        reason = choice.finish.reason
        status = STATUS.get(reason, "completed")
        prompt_tokens, tokens = self.usage.override(len(options.prompt_ids), choice.tokens)
        read, created, thoughts = self.told_cached, self.told_created, choice.reasoning_tokens
        usage: JsonObject = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": read,
                "cache_write_tokens": created,
                **INPUT_TURNS,
            },
            "output_tokens": tokens,
            "output_tokens_details": {
                "reasoning_tokens": thoughts,
                "tool_output_tokens": 0,
                **OUTPUT_TURNS,
            },
            "total_tokens": prompt_tokens + tokens,
        }
        response = replace(
            options.response,
            incomplete_details={"reason": INCOMPLETE[reason]} if status == "incomplete" else None,
            output=items,
            status=status,
            usage=usage,
            metrics=(self.timing() or UNSET) if options.metrics else UNSET,
            kv_transfer_params=self.transfer,
            ec_transfer_params=self.encoded_media,
        )
        if options.prompt_text is not None:
            said = "".join(segment.text for segment in choice.segments)
            kind = {"type": "raw_message_tokens"}
            asked: JsonObject = {
                "message": options.prompt_text,
                "tokens": options.prompt_ids,
                **kind,
            }
            response.input_messages = [asked]
            response.output_messages = [{"message": said, "tokens": choice.ids, **kind}]
        self._ended(response)
        return response


REPEATED = (
    *(
        "instructions",
        "metadata",
        "background",
        "max_tool_calls",
        "previous_response_id",
        "reasoning",
    ),
    *("service_tier", "truncation", "user"),
)


def new_response(asked: ResponsesRequest, meta: ResponseMeta, most_tokens: int) -> ResponseObject:
    """Returns the response to `asked`, in progress and without output; `most_tokens` is its limit.

    RecursionError when tools are nested too deeply. ApiError for nulls that a response cannot
    repeat.
    """
    if asked.background is None or asked.truncation is None:
        raise bad_request("The response cannot repeat a null: leave background and truncation out.")
    form = asked.text and asked.text.format and asked.text.format.to_json()
    text = asked.text and {"format": form, "verbosity": asked.text.verbosity}
    # Raw, because these may be nested deeply, and a stream repeats them three times.
    return ResponseObject(
        **{name: getattr(asked, name) for name in REPEATED},
        id=meta.id,
        created_at=meta.created,
        model=meta.model,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        tool_choice=Raw(encode(asked.tool_choice)),
        tools=Raw(encode(asked.tools)),
        top_p=1.0 if asked.top_p is None else asked.top_p,
        max_output_tokens=most_tokens,
        text=Raw(encode(text)),
        top_logprobs=asked.logprobs,
        presence_penalty=0.0 if asked.presence_penalty is None else asked.presence_penalty,
        frequency_penalty=0.0 if asked.frequency_penalty is None else asked.frequency_penalty,
    )
