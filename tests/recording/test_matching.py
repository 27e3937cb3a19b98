"""Requests are equal when they ask for the same, whoever asks; of others the one most like them is found."""

from __future__ import annotations

import json
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.serving.recording.exchange import Answer, bytes_of, masked_pieces
from app.serving.recording.library import DIGEST_BYTES, Recording, RequestForm, digest, form_of, json_object
from tests.recording.recordings import CHAT, chat, exchange, written


def form(body: Any, target: str = CHAT, content_type: str = "application/json") -> RequestForm:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return form_of("POST", target, content_type, masked_pieces([data])[0], True)


@pytest.mark.parametrize(
    "other",
    [
        {"messages": chat("Hi")["messages"], "model": "m"},
        chat("Hi", user="somebody", metadata={"run": 7}, request_id="r"),
        chat("Hi", temperature=None, stream=None),
    ],
)
def test_order_of_keys_volatile_fields_and_nulls_make_no_difference(other: dict[str, Any]) -> None:
    assert form(chat("Hi")).key == form(other).key


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert form(chat("Hi", temperature=1)).key == form(chat("Hi", temperature=1.0)).key


@pytest.mark.parametrize(
    "other", [chat("Ho"), chat("Hi", stream=True), chat("Hi", temperature=0.5), chat("Hi", "Ho", "Hi")]
)
def test_what_changes_the_answer_makes_a_difference(other: dict[str, Any]) -> None:
    assert form(chat("Hi")).key != form(other).key


def test_path_and_query_make_a_difference_but_for_secrets_and_escapes() -> None:
    assert form({}, "/v1/a?x=1").key != form({}, "/v1/a?x=2").key
    assert form({}, "/v1/a").key != form({}, "/v1/b").key
    assert form({}, "/v1/a?api_key=1").key == form({}, "/v1/a?api_key=2").key
    assert form({}, "/v1/%61").key == form({}, "/v1/a").key


def test_the_boundary_of_a_form_makes_no_difference() -> None:
    bodies = [f'--{mark}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' for mark in ("one", "two")]
    kinds = [f"multipart/form-data; boundary={mark}" for mark in ("one", "two")]
    one, two = (
        form(body.encode(), "/v1/audio/transcriptions", kind)
        for body, kind in zip(bodies, kinds, strict=True)
    )
    assert one.key == two.key


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"[" * 100_000, b"[1, 2]", b'{"a": "\\ud800"}'])
def test_what_is_no_json_object_is_equal_to_itself(body: bytes) -> None:
    assert form(body).key == form(body).key
    assert form(body).key != form(body + b"x").key


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(0, 3))
def test_however_a_body_is_written_its_hash_is_that_of_its_canonical_text(value: Any, indent: int) -> None:
    for spread in (None, indent):
        body = json.dumps(value, indent=spread).encode()
        fields = json_object(body)
        assert fields is not None
        canonical = msgspec.json.Encoder(order="sorted").encode(value)
        wanted = blake2b(canonical, digest_size=DIGEST_BYTES).digest()
        assert digest(fields) == wanted


def found(recording: Recording, body: Any) -> bytes | None:
    key = recording.find(form(body))
    return None if key is None else text_of(recording.next_answer(key))


def text_of(answer: Answer) -> bytes:
    return b"".join(bytes_of(chunk.data) for chunk in answer.chunks)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (chat("What is the weather in Rome?"), b"1"),
        (chat("What is the weather in Bonn today?"), b"2"),
        (chat("You there?", "Yes.", "And in Bonn?"), b"3"),
        (chat("Anything", stream=True), b"4"),
        (chat("What is the weather in Rome?", model="other"), b"1"),
        (chat("What is the weather in Rome?", temperature=2), b"1"),
    ],
)
def test_the_request_most_like_it_is_found(tmp_path: Path, asked: Any, answer: bytes) -> None:
    recorded = [
        exchange(chat("What is the weather in Rome?"), (0, b"1")),
        exchange(chat("What is the weather in Bonn?"), (0, b"2")),
        exchange(chat("You here?", "Yes.", "And in Bonn?"), (0, b"3")),
        exchange(chat("Stream!", stream=True), (0, b"4")),
    ]
    with closing(Recording(written(tmp_path / "r", recorded), alike=True)) as recording:
        assert found(recording, asked) == answer


def test_nothing_is_like_a_request_for_another_route_or_another_kind_of_answer(tmp_path: Path) -> None:
    path = written(tmp_path / "r", [exchange(chat("Hi"), (0, b"1"))])
    with closing(Recording(path, alike=True)) as recording:
        assert recording.find(form(chat("Hi"), "/v1/completions")) is None
        assert recording.find(form(chat("Hi", stream=True))) is None
        assert recording.find(form(b"Hi")) is None


def test_equal_requests_get_their_answers_in_the_order_in_which_they_were_asked(tmp_path: Path) -> None:
    recorded = [exchange(chat("Hi"), (0, text), at_s=at_s) for text, at_s in ((b"2", 1.0), (b"1", 0.5))]
    with closing(Recording(written(tmp_path / "r", recorded))) as recording:
        assert [found(recording, chat("Hi")) for _ in range(4)] == [b"1", b"2", b"2", b"2"]
        assert recording.given == {2: 3, 3: 1}
