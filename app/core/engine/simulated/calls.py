"""Tool calls in the markup of Hermes and Qwen models, within a token limit.

A call that a limit cuts off does not count as a call: in a whole answer its reply is the beginning
of the markup (`Part.raw`).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from app.core.base.clock.pause import pause_if_possible
from app.core.engine.constraints import CompiledSchema, Constraints, Size
from app.core.engine.outputs import Part
from app.core.engine.request import (
    LENGTH,
    STOP,
    EngineRequest,
    JsonSchema,
    Reply,
    ScriptedCall,
    Span,
    ToolCalls,
)
from app.core.engine.simulated.corpus import Corpus
from app.core.engine.simulated.json_text import (
    COMPACT,
    USUAL,
    write_compact_json,
    write_usual_json,
)
from app.core.engine.tool_replies import RequestedCall, ToolReplies
from app.core.text.base import Tokenizer
from config.validation import LiveSettings

OPENING = "<tool_call>\n"
CLOSING = "\n</tool_call>"
MIN_ROOM = 96
"""Tokens below which a call that is only allowed is not begun, as the recorded model does."""
SIZES = (*[Size.USUAL] * 4, *[Size.BRIEF] * 3, Size.LEAST)
"""Sizes of the arguments in each draw, until the calls fit the limit.

After the first draw there are fewer calls, and the last one has less markup.
"""
SHORT_CALL = 64
"""Limit up to which a required call has short strings, so that it fits."""
BOUNDS = frozenset(("maxLength", "enum", "const", "pattern", "format"))
"""Keywords that keep a text from running on."""


class CallSpan(NamedTuple):
    """Character offsets of a call in the text of its reply."""

    part: Part
    named: int
    start: int
    end: int
    """End of the arguments, which begin at `start`."""
    until: int


WrittenCalls: TypeAlias = tuple[str, Sequence[CallSpan]]
"""The text of a reply that calls tools, and where the calls are."""


class CallReplies:
    """Makes replies that call tools.

    Raises:
        SchemaError: No arguments satisfy a tool's schema.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        corpus: Corpus,
        schemas: Constraints,
        live: LiveSettings,
        tool_replies: ToolReplies | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._schemas = schemas
        self._live = live
        self._tool_replies = tool_replies

    def reply(self, request: EngineRequest, calls: ToolCalls, rng: Random) -> Reply | None:
        """Returns the calls of one reply, within the limit or, if required, cut off; else None."""
        requested = self._requested(request, calls)
        if requested is None:
            if calls.draws_call:
                calls = replace(calls, min_calls=1)
            count = calls.min_calls
            if count < calls.max_calls:
                count = self._draw_count(calls, rng)
        else:
            count = len(requested)
        is_limited = request.sampling.max_tokens is not None
        has_little_room = is_limited and request.max_tokens < MIN_ROOM
        if count == 0 or has_little_room and not calls.min_calls:
            return None
        if has_little_room and not calls.named and request.max_tokens > SHORT_CALL:
            field = endless_text(calls.tools[0].schema)
            if field is not None:
                return self._endless_call(calls.tools[0].name, field, request.max_tokens, rng)
        max_tokens = sys.maxsize
        if is_limited:
            max_tokens = request.max_tokens
        first_too_long: Reply | None = None
        for size in SIZES:
            drawn = self._draw_calls(calls, count, size=size, rng=rng, requested=requested)
            reply = self.marked_up(written(drawn, terse=size is Size.LEAST), max_tokens)
            if reply.finish is STOP and len(reply.ids) < max_tokens:
                return reply  # the end of text fits, too
            first_too_long = first_too_long or reply
            count = max(calls.min_calls, 1)
        return first_too_long if calls.min_calls else None

    def _requested(
        self, request: EngineRequest, calls: ToolCalls
    ) -> Sequence[RequestedCall] | None:
        """Returns the calls that the conversation asks for; None where they are drawn.

        A constraint on the text leaves only strict tools, unless a call is required.
        """
        requested: Sequence[RequestedCall] | None = None
        if self._tool_replies is not None:
            requested = self._tool_replies.requested_calls(calls)
        if request.constraint is None or calls.min_calls:
            return requested
        return [call for call in requested or () if call.tool.strict]

    def _draw_count(self, calls: ToolCalls, rng: Random) -> int:
        probability = self._live.current.tools.tool_call_extra_call_probability
        count = calls.min_calls
        while count < calls.max_calls and rng.random() * 100 < probability:
            count += 1
        return count

    def _endless_call(self, name: str, field: str, max_tokens: int, rng: Random) -> Reply:
        """Returns a call whose text does not end within the limit."""
        _, texts = self._corpus.compose(max_tokens, rng)
        arguments = write_usual_json({field: "".join(texts)})
        return self.marked_up(written([(name, arguments.removesuffix('"}'))]), max_tokens)

    def _draw_calls(
        self,
        calls: ToolCalls,
        count: int,
        *,
        size: Size,
        rng: Random,
        requested: Sequence[RequestedCall] | None,
    ) -> list[tuple[str, str]]:
        """Returns name and arguments of each call."""
        write_json = write_compact_json
        if size is Size.USUAL:
            write_json = write_usual_json
        drawn: list[tuple[str, str]] = []
        for position in range(count):
            if requested is None:
                tool = calls.tools[0]
                if not calls.named:
                    tool = rng.choice(calls.tools)
                compiled = self._schemas.compile(tool.schema, calls.lenient)
                arguments = compiled.sample(rng, self._live.current.tools, size)
            else:
                tool = requested[position].tool
                arguments = self._complete(requested[position], calls, size=size, rng=rng)
            drawn.append((tool.name, write_json(arguments)))
        return drawn

    def _complete(
        self, call: RequestedCall, calls: ToolCalls, *, size: Size, rng: Random
    ) -> object:
        """Returns the known arguments that fit, and drawn ones for other required fields.

        A named tool without known arguments stands for structured output: optional fields are
        drawn, too.
        """
        compiled = self._schemas.compile(call.tool.schema, calls.lenient)
        if call.arguments or not calls.named:
            size = min(size, Size.FRUGAL)
        drawn = compiled.sample(rng, self._live.current.tools, size)
        if isinstance(drawn, dict):
            return _with_known(drawn, call.arguments, compiled)
        return drawn

    def marked_up(self, written: WrittenCalls, max_tokens: int) -> Reply:
        """Returns the reply, cut off after `max_tokens`; a token shows only arguments."""
        text, calls = written
        all_ids = self._tokenizer.encode(text)
        ids = all_ids[:max_tokens]
        pieces = self._tokenizer.pieces(ids)
        raw = ""
        if len(ids) < len(all_ids):
            raw = "".join(pieces)
        texts, spans = _shown(pieces, calls, raw)
        return Reply(texts, ids, LENGTH if raw else STOP, spans)


def written(
    calls: Sequence[tuple[str, str]] | Sequence[ScriptedCall], terse: bool = False
) -> WrittenCalls:
    """Marks up calls of name, arguments and perhaps id; `terse` writes the minimum for parsers."""
    comma, colon = USUAL
    opening = OPENING
    if terse:
        comma, colon = COMPACT
        opening = OPENING.rstrip()
    text = ""
    spans: list[CallSpan] = []
    for number, (name, arguments, *call_id) in enumerate(calls, 1):
        if number > 1:
            text += "\n"
        text += f'{opening}{{"name"{colon}{write_usual_json(name)}'
        named = len(text)
        text += f'{comma}"arguments"{colon}'
        start = len(text)
        text += arguments
        end = len(text)
        text += "}"
        if not terse or number < len(calls):
            text += CLOSING
        part = Part("call", number - 1, name, id="".join(call_id))
        spans.append(CallSpan(part, named=named, start=start, end=end, until=len(text)))
    return text, spans


def _shown(
    pieces: Sequence[str], calls: Sequence[CallSpan], raw: str
) -> tuple[list[str], list[Span]]:
    """Returns the shown text of each token, and the spans of the calls.

    The first span of a call has no name: its tokens come before the name is complete.
    """
    texts = [""] * len(pieces)
    spans: list[Span] = []
    ends = list(accumulate(map(len, pieces)))
    starts = [0, *ends][:-1]
    first = 0
    for part, named, start, end, until in calls:
        stop = len(pieces)
        if part is not calls[-1].part:
            stop = max(first, bisect_left(starts, until))
        first_named = min(max(first, bisect_left(ends, named)), stop)
        if first_named > first:
            spans.append((first_named, Part("call", part.number, "", raw)))
        if stop > first_named:
            named_part = Part("call", part.number, part.name, raw, id=part.id)
            spans.append((stop, named_part))
        first_shown = max(first, bisect_right(ends, start))
        stop_shown = min(stop, bisect_left(starts, end))
        if first_shown < stop_shown:
            texts[first_shown:stop_shown] = pieces[first_shown:stop_shown]
            last_shown = stop_shown - 1
            texts[last_shown] = texts[last_shown][: end - starts[last_shown]]
            texts[first_shown] = texts[first_shown][max(0, start - starts[first_shown]) :]
        first = stop
    return texts, spans


def _with_known(
    drawn: dict[str, object], arguments: Mapping[str, object], compiled: CompiledSchema
) -> dict[str, object]:
    """Returns drawn arguments, and the known `arguments` that the schema accepts. May pause."""
    merged = {**drawn, **arguments}
    if compiled.accepts(merged):
        return merged
    merged = drawn
    for name, value in arguments.items():
        pause_if_possible()
        extended = {**merged, name: value}
        if compiled.accepts(extended):
            merged = extended
    return merged


def endless_text(schema: JsonSchema) -> str | None:
    """Returns a required field with a text of any length, if an open object has further fields.

    A recorded vLLM did not end such a text within 90 tokens.
    """
    if not isinstance(schema, Mapping) or schema.get("additionalProperties") is False:
        return None
    fields = schema.get("properties")
    required = schema.get("required")
    if isinstance(fields, Mapping) and isinstance(required, list) and len(fields) > len(required):
        for name, field in fields.items():
            is_text = isinstance(field, Mapping) and field.get("type") == "string"
            if name in required and is_text and BOUNDS.isdisjoint(field):
                return str(name)
    return None
