"""Invalid recordings, the lookup of answers by request, and the masking of secrets."""

import json
import logging
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.server.middleware.masking import mask_text
from app.extensions.recording.exchange import (
    HiddenSecretsError,
    RecordedAnswer,
    RecordingError,
    bytes_of,
    line_of,
    masked_pieces,
    read_exchange,
)
from app.extensions.recording.library import Recording
from app.extensions.recording.request_form import RequestForm, request_form
from tests.extensions.recording.recordings import CHAT, HEADER, chat, exchange, written

ONE = exchange(chat("Hi"), (0, b"1"))
KEY = request_form(
    "POST",
    CHAT,
    content_type="application/json",
    body=bytes_of(ONE.request.body),
    with_features=False,
).key


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "was not recorded with understudy record --proxy"),
        (b"\x00\x1f\x8b", "was not recorded with"),
        (b'{"format": "har", "version": 1}\n', "was not recorded with"),
        (
            HEADER.replace(b'"version":1', b'"version":7'),
            "uses format version 7, but only version 1 is supported",
        ),
        (HEADER + b"{}\n" + line_of(ONE), "line 2 is not an exchange"),
        (HEADER + b"\n" + line_of(ONE), "line 2 is not an exchange"),
        (
            HEADER + line_of(ONE).replace(b'"end_s":0}', b'"end_s":1e300}'),
            "line 2 is not an exchange",
        ),
    ],
)
def test_file_that_is_not_a_recording_is_rejected(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(RecordingError, match=why):
        Recording(str(tmp_path / "r"))


@pytest.mark.parametrize("cut", [2, 100])
def test_truncated_last_line_of_a_recording_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    path = written(tmp_path / "r", [ONE, ONE], line_of(ONE)[:-cut])
    with caplog.at_level(logging.WARNING), closing(Recording(path)) as recording:
        assert len(recording) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: line 4 is cut off, and left out"
    ]


def test_line_of_a_recording_that_is_too_long_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.extensions.recording.lines.MAX_LINE_BYTES", 1 << 20)
    path = written(tmp_path / "r", [exchange(b"x" * (1 << 20), (0, b"0")), ONE])
    with pytest.raises(RecordingError, match="line 2 is longer than 1 MiB"):
        Recording(path)


def test_change_of_a_recording_file_while_it_is_open_is_detected(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "r", [ONE]))
    with closing(Recording(str(path))) as recording:
        path.write_bytes(HEADER + b"x" * 50)
        with pytest.raises(RecordingError, match="line 2 has changed"):
            recording.next_answer(KEY)


@settings(max_examples=25, deadline=None)
@given(st.binary() | st.text().map(str.encode))
@example(b"\x1f\x8b")
def test_recorded_bodies_are_read_back_byte_for_byte(content: bytes) -> None:
    line = line_of(exchange(content, (0, content)))
    read = read_exchange(line)
    assert bytes_of(read.request.body) == bytes_of(read.answer.chunks[0].data) == content
    assert len(line) < 1000 + 5 * len(content)


def form(body: Any, target: str = CHAT, content_type: str = "application/json") -> RequestForm:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request_form(
        "POST",
        target,
        content_type=content_type,
        body=masked_pieces([data])[0],
        with_features=True,
    )


@pytest.mark.parametrize(
    "other",
    [
        {"messages": chat("Hi")["messages"], "model": "m"},
        chat("Hi", user="somebody", metadata={"run": 7}, request_id="r", stream=None),
    ],
)
def test_request_key_ignores_field_order_and_volatile_fields(
    other: dict[str, Any],
) -> None:
    assert form(chat("Hi", temperature=1)).key == form({**other, "temperature": 1.0}).key


@pytest.mark.parametrize(
    "other",
    [chat("Ho"), chat("Hi", stream=True), chat("Hi", temperature=0.5), chat("Hi", "Ho", "Hi")],
)
def test_fields_that_change_the_response_change_the_request_key(
    other: dict[str, Any],
) -> None:
    assert form(chat("Hi")).key != form(other).key


@pytest.mark.parametrize("body", [b"", b"\xff", b"[" * 100_000, b"[1, 2]"])
def test_non_json_bodies_are_compared_by_bytes_except_for_form_boundaries(
    body: bytes,
) -> None:
    assert form(body).key == form(body).key != form(body + b"x").key
    mixed = [
        form(b"--%s\r\n\r\n1" % mark, "/v1/a", f"multipart/form-data; boundary={mark.decode()}")
        for mark in (b"a", b"b")
    ]
    assert mixed[0].key == mixed[1].key


def test_request_key_depends_on_the_path_but_not_on_secrets() -> None:
    assert form({}, "/v1/a?x=1").key != form({}, "/v1/a?x=2").key
    assert form({}, "/v1/a").key != form({}, "/v1/b").key
    assert form({}, "/v1/a?api_key=1").key == form({}, "/v1/a?api_key=2").key
    assert form({}, "/v1/%61").key == form({}, "/v1/a").key


def answer_text(recording: Recording, body: Any) -> bytes | None:
    key = recording.find(form(body))
    return None if key is None else text_of(recording.next_answer(key))


def text_of(answer: RecordedAnswer) -> bytes:
    return b"".join(bytes_of(chunk.data) for chunk in answer.chunks)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (chat("What is the weather in Rome?"), b"1"),
        (chat("What is the weather in Bonn today?"), b"2"),
        (chat("You there?", "Yes.", "And in Bonn?"), b"3"),
        (chat("Anything", stream=True), b"4"),
        (chat("What is the weather in Rome?", model="other"), b"1"),
        (chat("What is the weather in Rome?", temperature=2), b"1"),
    ],
)
def test_most_similar_recorded_request_is_found(tmp_path: Path, sent: Any, answer: bytes) -> None:
    recorded = [
        exchange(chat("What is the weather in Rome?"), (0, b"1")),
        exchange(chat("What is the weather in Bonn?"), (0, b"2")),
        exchange(chat("You here?", "Yes.", "And in Bonn?"), (0, b"3")),
        exchange(chat("Stream!", stream=True), (0, b"4")),
    ]
    with closing(Recording(written(tmp_path / "r", recorded), finds_similar=True)) as recording:
        assert answer_text(recording, sent) == answer


def test_requests_that_differ_in_route_or_stream_mode_are_not_similar(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "r", [exchange(chat("Hi"), (0, b"1"))])
    with closing(Recording(path, finds_similar=True)) as recording:
        assert recording.find(form(chat("Hi"), "/v1/completions")) is None
        assert recording.find(form(chat("Hi", stream=True))) is None
        assert recording.find(form(b"Hi")) is None


def test_equal_requests_get_their_responses_in_recorded_order(
    tmp_path: Path,
) -> None:
    recorded = [
        exchange(chat("Hi"), (0, text), at_s=at_s) for text, at_s in ((b"2", 1.0), (b"1", 0.5))
    ]
    with closing(Recording(written(tmp_path / "r", recorded))) as recording:
        assert [answer_text(recording, chat("Hi")) for _ in range(4)] == [b"1", b"2", b"2", b"2"]
        assert recording.use_counts == {2: 3, 3: 1}


SECRET = "sk-123456789"
BODIES = (
    json.dumps({"a": 1, "api_key": SECRET, "b": "x" * 20}),
    f'data: {{"token": "{SECRET}"}}\n\ndata: {{"password": "{SECRET}"}}\n\ndata: [DONE]\n\n',
    json.dumps({"arguments": json.dumps({"secret": SECRET, "city": "東京 😀"})}),
    json.dumps({"arguments": json.dumps({"secret": SECRET, "city": "Köln"})}, ensure_ascii=False),
    f"Authorization: Bearer {SECRET} and more",
    json.dumps({"max_tokens": 5, "content": "no secret 😀"}),
)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(BODIES), st.lists(st.integers(0, 200), max_size=5))
def test_body_in_pieces_is_masked_like_the_complete_body(body: str, cuts: list[int]) -> None:
    data = body.encode()
    ends = sorted(min(cut, len(data)) for cut in cuts)
    pieces = [data[start:end] for start, end in pairwise([0, *ends, len(data)])]
    masked = masked_pieces(pieces)
    assert len(masked) == len(pieces)
    assert SECRET.encode() not in b"".join(masked)
    assert b"".join(masked) == b"".join(masked_pieces([data]))
    if mask_text(body) == body:
        assert masked == pieces


@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP "])
def test_compressed_body_is_not_recorded(coding: str) -> None:
    with pytest.raises(HiddenSecretsError):
        masked_pieces([b"anything"], coding)
    assert masked_pieces([b"", b""], coding) == [b"", b""]
