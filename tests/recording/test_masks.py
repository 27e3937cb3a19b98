"""No secret gets into a recording, wherever the pieces of a body end; all else stays as it was."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serving.middleware.masking import mask_text
from app.serving.recording.exchange import HiddenSecrets, masked_headers, masked_pieces

SECRET = "sk-123456789"
BODIES = (
    json.dumps({"a": 1, "api_key": SECRET, "b": "x" * 20}),
    f'data: {{"token": "{SECRET}"}}\n\ndata: {{"password": "{SECRET}"}}\n\ndata: [DONE]\n\n',
    json.dumps({"arguments": json.dumps({"secret": SECRET, "city": "Köln"})}),
    json.dumps({"arguments": json.dumps({"secret": SECRET, "city": "Köln"})}, ensure_ascii=False),
    f"Authorization: Bearer {SECRET} and more",
    json.dumps({"max_tokens": 5, "content": "no secret 😀"}),
)


@given(st.sampled_from(BODIES), st.lists(st.integers(0, 200), max_size=5))
def test_a_body_in_pieces_is_masked_as_it_is_whole(body: str, cuts: list[int]) -> None:
    data = body.encode()
    ends = sorted(min(cut, len(data)) for cut in cuts)
    pieces = [data[start:end] for start, end in pairwise([0, *ends, len(data)])]
    masked = masked_pieces(pieces)
    assert len(masked) == len(pieces)
    assert SECRET.encode() not in b"".join(masked)
    assert b"".join(masked) == b"".join(masked_pieces([data]))
    if mask_text(body) == body:
        assert masked == pieces


def test_pieces_without_secrets_keep_their_bytes() -> None:
    pieces = [b'{"content": "K', "ö"[:1].encode()[:1], "ö".encode()[1:], b'ln", "key": "k"}']
    assert masked_pieces(pieces) == [*pieces[:3], b'ln", "key": "***"}']


def test_what_stands_for_a_secret_is_where_the_secret_began() -> None:
    assert masked_pieces([b'{"key": "ab', b"cd", b'ef", "n": 1}']) == [b'{"key": "***"', b"", b', "n": 1}']


def test_escapes_beyond_latin_1_are_still_json() -> None:
    body = json.dumps({"arguments": json.dumps({"secret": SECRET, "city": "東京 😀"})})
    masked = json.loads(b"".join(masked_pieces([body.encode()])))
    assert json.loads(masked["arguments"]) == {"secret": "***", "city": "東京 😀"}


def test_headers_keep_their_order_and_their_doubles() -> None:
    headers = [("Set-Cookie", "a"), ("X-Api-Key", "b"), ("Vary", "c"), ("set-cookie", "d"), ("Vary", "e")]
    assert masked_headers(headers) == [
        ("Set-Cookie", "***"),
        ("X-Api-Key", "***"),
        ("Vary", "c"),
        ("set-cookie", "***"),
        ("Vary", "e"),
    ]


def test_a_compressed_body_is_kept_as_it_is_when_it_hides_nothing() -> None:
    packed = gzip.compress(b'{"content": "x"}')
    assert masked_pieces([packed[:5], packed[5:]], "gzip") == [packed[:5], packed[5:]]


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(b'{"api_key": "x"}', mtime=0), "gzip"),
        (gzip.compress(b"{}", mtime=0) + gzip.compress(b'{"api_key": "x"}', mtime=0), "gzip"),
        (b"no gzip", "gzip"),
        (gzip.compress(bytes(40 << 20), mtime=0), "gzip"),
        (b"anything", "br"),
    ],
)
def test_a_compressed_body_that_may_hide_a_secret_is_not_kept(body: bytes, coding: str) -> None:
    with pytest.raises(HiddenSecrets):
        masked_pieces([body], coding)
