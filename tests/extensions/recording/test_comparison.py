"""The comparison that drift and the oracle share."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from app.extensions.recording.comparison import (
    SHAPE_AND_CONSTANTS,
    ComparisonRules,
    ReceivedAnswer,
    differences,
    shape_of,
    shapes_of,
)

EVENTS = [("content-type", "text/event-stream")]
JSON = [("content-type", "application/json")]


def _json(value: object, **headers: str) -> ReceivedAnswer:
    return ReceivedAnswer(200, [*JSON, *headers.items()], msgspec.json.encode(value))


def _stream(*events: object) -> ReceivedAnswer:
    lines = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return ReceivedAnswer(200, EVENTS, b"".join([*lines, b"data: [DONE]\n\n"]))


def _delta(index: int, **fields: Any) -> dict[str, object]:
    return {"choices": [{"index": index, **fields}]}


def _lines(first: ReceivedAnswer, second: ReceivedAnswer, **rules: Any) -> list[str]:
    compared = ComparisonRules(**rules)
    return list(differences(shapes_of(first, compared), shapes_of(second, compared)))


def test_differing_types_and_keys_are_listed_but_values_are_not() -> None:
    assert _lines(_json({"id": "a", "n": 1}), _json({"id": "b", "n": 2.5})) == []
    assert _lines(_json({"id": "a"}), _json({"id": None, "x": 1})) == [
        "$.id: string: only in the recorded answer",
        "$.id: null: only in the live answer",
        "$.x: number: only in the live answer",
    ]


def test_comparison_includes_the_values_of_requested_fields() -> None:
    first = _json({"tokens": [1, 2], "code": 400})
    second = _json({"tokens": [1, 3], "code": 404})
    assert _lines(first, second) == []
    lines = _lines(first, second, values=frozenset(("tokens", "code")))
    assert len(lines) == 4
    assert "$.tokens: [1, 2]: only in the recorded answer" in lines


def test_ignored_fields_are_not_compared() -> None:
    first = _json({"data": [{"a": 1}, {"a": 2}], "noise": 1})
    second = _json({"data": [{"a": 1}], "noise": "x"})
    assert _lines(first, second, ignored=frozenset(("noise",))) == []
    lines = _lines(first, second, ignored=frozenset(("noise",)), counted=frozenset(("data",)))
    assert lines == [
        "$.data: 2 items: only in the recorded answer",
        "$.data: 1 items: only in the live answer",
    ]


def test_order_of_the_choices_in_a_stream_does_not_count_as_a_difference() -> None:
    first = _stream(_delta(0, text="a"), _delta(1, text="b"), _delta(0, end=1), _delta(1, end=1))
    second = _stream(_delta(1, text="a"), _delta(1, end=1), _delta(0, text="b"), _delta(0, end=1))
    assert _lines(first, second) == []


def test_comparison_names_the_first_different_part_of_a_stream() -> None:
    lines = _lines(_stream(_delta(0, text="a")), _stream(_delta(0, text="a"), _delta(0, end=1)))
    assert len(lines) == 1
    assert lines[0].startswith("stream, part 2: [DONE] in the recorded answer")


def test_response_headers_are_compared_by_name() -> None:
    first = _json({}, allow="GET, POST", server="a")
    second = _json({}, allow="POST, GET", date="b")
    assert _lines(first, second) == []
    assert _lines(first, second, headers=frozenset(("allow",))) == []
    lines = _lines(first, second, unstable_headers=frozenset(("date", "content-type")))
    assert lines == ["header server in the recorded answer, less in the live answer"]


def test_token_keys_become_wildcards_in_compared_paths() -> None:
    assert shape_of({"prompt_logprobs": {"5": 1}}) == {"$.prompt_logprobs.*: number"}
    assert shape_of({"top_logprobs": {"Hi": 1, "x": 2}}) == {"$.top_logprobs.*: number"}


def test_metrics_are_compared_by_labels_but_not_by_values() -> None:
    body = b'# HELP a text\n# TYPE a counter\na{x="1",y="2"} 5\n'
    answer = ReceivedAnswer(200, [("content-type", "text/plain")], body)
    other = ReceivedAnswer(200, [("content-type", "text/plain")], body.replace(b"5", b"6"))
    fewer = ReceivedAnswer(200, [("content-type", "text/plain")], body.replace(b',y="2"', b""))
    assert _lines(answer, other) == []
    assert _lines(answer, fewer) == [
        "sample a, label y: only in the recorded answer",
    ]


def _response(status: str, reason: str | None) -> dict[str, Any]:
    details = None if reason is None else {"reason": reason}
    return {"status": status, "incomplete_details": details}


CHANGES = [
    (_delta(0, finish_reason="stop"), _delta(0, finish_reason="length")),
    ({"stop_reason": "end_turn"}, {"stop_reason": "max_tokens"}),
    ({"stop_reason": None}, {"stop_reason": "END"}),
    (_response("incomplete", "max_output_tokens"), _response("incomplete", "content_filter")),
    (_response("completed", None), _response("failed", None)),
    ({"error": {"type": "BadRequestError"}}, {"error": {"type": "invalid_request_error"}}),
    ({"error": {"code": 400}}, {"error": {"code": "invalid_value"}}),
]


@pytest.mark.parametrize(("recorded", "live"), CHANGES)
@pytest.mark.parametrize("wrap", [_json, _stream])
def test_drift_compares_the_constants_of_the_protocol_by_value(
    recorded: object, live: object, wrap: Callable[[object], ReceivedAnswer]
) -> None:
    first = shapes_of(wrap(recorded), SHAPE_AND_CONSTANTS)
    second = shapes_of(wrap(live), SHAPE_AND_CONSTANTS)
    assert list(differences(first, first)) == []
    lines = list(differences(first, second))
    assert lines
    assert any(word in lines[0] for word in ("reason", "status", "type", "code"))
