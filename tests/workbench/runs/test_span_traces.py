"""Spans of OpenTelemetry are loads: of the collector's file exporter, and of this server."""

import json
from pathlib import Path
from typing import Any

import pytest

from config import ConfigError
from workbench.load.loads import NO_GROUP, LoadTrace
from workbench.runs.traces import read_trace

SECOND_NS = 1_000_000_000


def attribute(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, int):
        return {"key": name, "value": {"intValue": str(value)}}
    return {"key": name, "value": {"stringValue": value}}


def span(
    number: int, start_s: float, end_s: float, tokens: tuple[int, int] | None, **fields: Any
) -> dict[str, Any]:
    """A span of a chat with the attributes of the conventions."""
    attributes = {"gen_ai.operation.name": "chat", **fields.pop("attributes", {})}
    if tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = tokens[0]
        attributes["gen_ai.usage.output_tokens"] = tokens[1]
    return {
        "traceId": "t",
        "spanId": f"s{number}",
        "name": "chat m",
        "startTimeUnixNano": str(int((1_700_000_000 + start_s) * SECOND_NS)),
        "endTimeUnixNano": str(int((1_700_000_000 + end_s) * SECOND_NS)),
        "attributes": [attribute(name, value) for name, value in attributes.items()],
        **fields,
    }


def message(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [*spans]}]}]}


def load_of(folder: Path, text: str) -> LoadTrace:
    path = folder / "spans.json"
    path.write_text(text)
    return read_trace(path)


def tokens_of(load: LoadTrace) -> list[tuple[int, int]]:
    return list(zip(load.input_tokens, load.output_tokens, strict=True))


@pytest.mark.parametrize("as_lines", [False, True])
def test_spans_with_usage_are_requests(tmp_path: Path, as_lines: bool) -> None:
    spans = (
        span(1, 1.5, 2, (100, 10)),
        span(2, 0, 1, (20, 3)),
        span(3, 0, 1, None),
        span(4, 0, 1, (20, 3), status={"code": 2}),
        span(5, 0, 1, (20, 3), attributes={"gen_ai.operation.name": "execute_tool"}),
        {"spanId": "x", "name": "GET /", "attributes": []},
    )
    text = json.dumps(message(*spans), indent=1)
    if as_lines:
        text = "\n".join(json.dumps(message(item)) for item in spans)
    load = load_of(tmp_path, text)
    assert list(load.arrival_s) == [0.0, 1.5]
    assert tokens_of(load) == [(20, 3), (100, 10)]
    assert load.left_out == 2


def test_innermost_of_nested_spans_counts(tmp_path: Path) -> None:
    gateway = span(1, 0, 2, (100, 10))
    proxy = {"spanId": "p", "parentSpanId": "s1", "name": "POST", "attributes": []}
    engine = span(2, 0.5, 2, (101, 10), parentSpanId="p")
    load = load_of(tmp_path, json.dumps(message(gateway, proxy, engine)))
    assert tokens_of(load) == [(101, 10)]


@pytest.mark.parametrize(
    ("input_name", "output_name"),
    [
        ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"),
        ("llm.usage.prompt_tokens", "llm.usage.completion_tokens"),
        ("llm.token_count.prompt", "llm.token_count.completion"),
    ],
)
def test_usage_has_the_names_of_several_conventions(
    tmp_path: Path, input_name: str, output_name: str
) -> None:
    attributes = {input_name: 7, output_name: 5}
    load = load_of(tmp_path, json.dumps(message(span(1, 0, 1, None, attributes=attributes))))
    assert tokens_of(load) == [(7, 5)]


def test_turns_of_a_conversation_wait_for_the_answer_before(tmp_path: Path) -> None:
    conversation = {"gen_ai.conversation.id": "c"}
    load = load_of(
        tmp_path,
        json.dumps(
            message(
                span(1, 0, 2, (10, 5), attributes=conversation),
                span(2, 3, 4, (20, 5), attributes=conversation),
                span(3, 3.5, 4, (30, 5)),
                span(4, 3.6, 4, (9, 5), attributes=conversation),
            )
        ),
    )
    assert list(load.session) == [0, 0, NO_GROUP, NO_GROUP]
    assert list(load.think_s) == pytest.approx([0, 1, 0, 0])


def test_spans_of_this_server_are_a_load(tmp_path: Path) -> None:
    from google.protobuf.json_format import MessageToJson
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from tests.extensions.tracing.test_trace import Traced

    traced = Traced()
    traced.ask(max_tokens=4)
    traced.clock.advance(10)
    traced.end()
    load = load_of(tmp_path, MessageToJson(encode_spans(traced.spans())))
    assert list(load.output_tokens) == [4]


def plain_span(number: int, second: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """A span with dates and plain attributes."""
    return {
        "span_id": f"s{number}",
        "parent_span_id": None,
        "start_time": f"2026-02-25T10:00:{second:02d}.500000",
        "end_time": f"2026-02-25T10:00:{second + 1:02d}.500000",
        "attributes": {"gen_ai.operation.name": "chat", **attributes},
        "status": {"code": 1},
    }


USAGE = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10}
MESSAGES = [{"role": "user", "content": "x" * 40}]
PARTS = [{"role": "user", "parts": [{"type": "text", "content": "x" * 20}]}]


@pytest.mark.parametrize("form", ["object", "lines"])
def test_plain_spans_are_requests_with_counted_or_estimated_tokens(
    tmp_path: Path, form: str
) -> None:
    texts = {"gen_ai.input.messages": json.dumps(MESSAGES), "gen_ai.output.text": "y" * 8}
    parts = {"gen_ai.input.messages": PARTS, "gen_ai.output.messages": [{"content": "y" * 9}]}
    spans = [
        plain_span(1, 2, USAGE),
        plain_span(2, 0, texts),
        plain_span(3, 4, parts),
        {**plain_span(4, 5, USAGE), "context": {"span_id": "s4"}, "parent_id": "s1"},
        plain_span(5, 6, {"gen_ai.operation.name": "execute_tool"}),
    ]
    text = json.dumps({"trace_id": "t", "span_count": 4, "spans": spans})
    if form == "lines":
        text = "\n".join(json.dumps(span) for span in spans)
    load = load_of(tmp_path, text)
    assert list(load.arrival_s) == pytest.approx([0.0, 4.0, 5.0])
    assert tokens_of(load) == [(10, 2), (5, 3), (100, 10)]


def test_plain_span_after_a_long_attribute_is_read(tmp_path: Path) -> None:
    span = plain_span(1, 2, USAGE)
    span["attributes"] = {"input.value": "x" * 10_000, **USAGE}
    load = load_of(tmp_path, json.dumps(span))
    assert tokens_of(load) == [(100, 10)]


@pytest.mark.parametrize(
    "spans",
    [5, [5], [{"attributes": 5}], [{"attributes": {}, "context": "x"}], [{"status": 5}]],
)
def test_wrong_plain_spans_are_an_error_of_one_line(tmp_path: Path, spans: object) -> None:
    with pytest.raises(ConfigError) as error:
        load_of(tmp_path, json.dumps({"trace_id": "t", "spans": spans}))
    assert "\n" not in str(error.value)
