"""OpenTelemetry spans of requests to models: OTLP as JSON, one message or one in each line.

The collector's file exporter writes such files. Spans may also be written with dates and plain
attributes, in a list `spans`, as inference-perf reads them, or one in each line. Attributes have
the names of the conventions for generative AI, old and new, of OpenLLMetry, or of OpenInference.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from config import ConfigError
from workbench.load.loads import LoadTrace
from workbench.runs.json_rows import Json
from workbench.runs.row_values import is_missing, read_moment
from workbench.runs.text_tokens import estimated_tokens
from workbench.runs.trace_builder import TraceBuilder, TraceRow

RESOURCES = ("resourceSpans", "resource_spans")
SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
INPUT_TOKENS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",
)
OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "llm.token_count.completion",
)
INPUT_TEXTS = ("gen_ai.input.messages", "gen_ai.prompt")
OUTPUT_TEXTS = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion")
"""Texts of spans without counts of tokens, which are estimated."""
STARTS = ("startTimeUnixNano", "start_time_unix_nano", "start_time")
ENDS = ("endTimeUnixNano", "end_time_unix_nano", "end_time")
CONVERSATIONS = ("gen_ai.conversation.id", "session.id")
OPERATION = "gen_ai.operation.name"
NO_MODEL = frozenset(
    ("create_agent", "invoke_agent", "invoke_workflow", "execute_tool", "plan", "embeddings")
)
"""Operations without tokens, or with the sum of the usage of other spans."""
GENERATING = frozenset(("chat", "text_completion", "generate_content"))
"""Operations that generate tokens; without them the request has failed."""
PHASES = frozenset(("queued", "prefill", "decode"))
"""Names of the spans of parts of a request, which repeat its usage."""
ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")


class _Span(Struct):
    place: str
    id: str
    parent: str
    start: object
    end: object
    attributes: Json
    has_failed: bool
    name: str


def is_span_trace(row: Json) -> bool:
    """Returns whether an object is a message of OTLP with spans, or has plain spans."""
    if any(name in row for name in RESOURCES) or isinstance(row.get("spans"), list):
        return True
    return _is_plain_span(row)


def _is_plain_span(row: Json) -> bool:
    return isinstance(row.get("attributes"), dict) and "start_time" in row


def read_span_trace(rows: Iterable[tuple[str, Json]], load: LoadTrace) -> None:
    """Reads the spans that generated tokens.

    Where spans are nested, such as spans of a gateway and of an engine, the innermost one counts.

    Raises:
        ConfigError: A span is wrong; the message has file, line and rule.
    """
    parents: dict[str, str] = {}
    requests: list[_Span] = []
    for place, row in rows:
        try:
            for span in _spans(row, place):
                parents[span.id] = span.parent
                if _is_request(span):
                    requests.append(span)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"{load.origin}, {place}: not a message of OTLP: {error}") from None
    outer = _outer_spans(requests, parents)
    builder = TraceBuilder(load)
    for span in requests:
        if span.id in outer:
            continue
        try:
            builder.add(_row_of(span), (INPUT_TOKENS[0], OUTPUT_TOKENS[0]))
        except ValueError as error:
            raise ConfigError(f"{load.origin}, {span.place}: span {span.id}: {error}") from None
    builder.finish()


def _spans(message: Json, place: str) -> Iterator[_Span]:
    for span in _span_objects(message):
        context = span.get("context") or span
        yield _Span(
            place=place,
            id=str(_first(context, ("spanId", "span_id"))),
            parent=str(_first(span, ("parentSpanId", "parent_span_id", "parent_id")) or ""),
            start=_first(span, STARTS),
            end=_first(span, ENDS),
            attributes=_attributes(span.get("attributes") or ()),
            has_failed=(span.get("status") or {}).get("code") in ERROR_CODES,
            name=str(span.get("name")),
        )


def _span_objects(message: Json) -> Iterator[Json]:
    """Yields the spans of a message of OTLP, or of an object with plain spans."""
    for resource in _first(message, RESOURCES) or ():
        for scope in _first(resource, SCOPES) or ():
            yield from scope.get("spans") or ()
    if _is_plain_span(message):
        yield message
    else:
        yield from message.get("spans") or ()


def _attributes(items: Iterable[Json] | Json) -> Json:
    """Returns the attributes that are read, by name; counts of tokens instead of texts."""
    if isinstance(items, dict):
        values = items
    else:
        values = {}
        for item in items:
            values[str(item.get("key"))] = next(iter((item.get("value") or {}).values()), None)
    names = (*INPUT_TOKENS, *OUTPUT_TOKENS, *CONVERSATIONS, OPERATION)
    attributes = {name: values[name] for name in names if name in values}
    for counts, texts in ((INPUT_TOKENS, INPUT_TEXTS), (OUTPUT_TOKENS, OUTPUT_TEXTS)):
        text = _first(values, texts)
        if text and _first(values, counts) is None:
            attributes[counts[0]] = estimated_tokens(text)
    return attributes


def _is_request(span: _Span) -> bool:
    operation = span.attributes.get(OPERATION)
    if operation in NO_MODEL or span.name in PHASES:
        return False
    has_usage = _first(span.attributes, OUTPUT_TOKENS) is not None
    return has_usage or operation in GENERATING


def _outer_spans(requests: list[_Span], parents: dict[str, str]) -> set[str]:
    """Returns the ids of the spans that contain other requests."""
    ids = {span.id for span in requests}
    outer: set[str] = set()
    seen: set[str] = set()  # of all requests, so that a long chain of spans is followed once
    for span in requests:
        parent = span.parent
        while parent and parent not in seen:
            if parent in ids:
                outer.add(parent)
                break  # the outer span continues from there
            seen.add(parent)
            parent = parents.get(parent, "")
    return outer


def _row_of(span: _Span) -> TraceRow:
    output_tokens = _first(span.attributes, OUTPUT_TOKENS)
    if span.has_failed:
        output_tokens = None
    end_s = None
    if not is_missing(span.end):
        end_s = read_moment("endTimeUnixNano", span.end, "ns")
    return TraceRow(
        arrival_s=read_moment("startTimeUnixNano", span.start, "ns"),
        input_tokens=_first(span.attributes, INPUT_TOKENS),
        output_tokens=output_tokens,
        conversation=str(_first(span.attributes, CONVERSATIONS) or ""),
        end_s=end_s,
    )


def _first(mapping: Json, names: Iterable[str]) -> Any:
    """Returns the first value that `mapping` has under one of the names; None without one."""
    for name in names:
        if mapping.get(name) is not None:
            return mapping[name]
    return None
