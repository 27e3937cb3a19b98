"""What the load client makes of arrivals: synthetic ones here, no clock and no socket."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.arrivals import Arrivals, Rhythm, drift_ms, errors_ms, pace
from benchmarks.chunks import STREAMED, token_count
from benchmarks.families import LENGTHEN, requests_of, streams_of
from benchmarks.replies import EventStream, RefusedError, WholeReply

MS = 1_000_000
RHYTHM = Rhythm(ttft_s=0.050, itl_s=0.020)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def stream(*late_ms: float, requested_ns: int = 0, itl_ms: float = 20) -> Arrivals:
    """A stream of RHYTHM whose chunk k comes `late_ms[k]` after its due moment."""
    due = (requested_ns + (50 + k * itl_ms) * MS for k in range(len(late_ms)))
    return Arrivals(
        requested_ns, [round(moment + late * MS) for moment, late in zip(due, late_ms, strict=True)]
    )


def events(count: int) -> bytes:
    """A chunked body of `count` events and the last one, as a server sends it."""
    body = [b'data: {"k":%d}\n\n' % k for k in range(count)] + [b"data: [DONE]\n\n"]
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in body) + b"0\r\n\r\n"


def pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    """`text` in the pieces that recv could give."""
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(text)), len(text)]
    return [text[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]


def test_timing_error_of_each_token_is_relative_to_its_expected_time() -> None:
    assert errors_ms(stream(0, 0.5, -0.25, requested_ns=7 * MS), RHYTHM) == pytest.approx(
        [0, 0.5, -0.25]
    )
    with_role = Arrivals(0, [50 * MS, *stream(1, 2).chunks_ns])
    assert errors_ms(with_role, Rhythm(0.050, 0.020, skipped=1)) == pytest.approx([1, 2])
    seen = pace([Arrivals(0, []), stream(-3, 1, 1, 1)], RHYTHM)  # early is as bad as late
    assert (seen.ttft_p50_ms, seen.chunk_max_ms, seen.chunk_p50_ms) == pytest.approx((3, 3, 1))
    assert seen.chunks == 4
    nothing = pace([], RHYTHM)
    assert nothing.chunks == 0 and math.isnan(nothing.speed) and math.isnan(nothing.drift_ms)


def test_token_count_is_derived_from_stream_duration() -> None:
    assert token_count(stream(*[0.0] * 60), itl_s=0.020) == pytest.approx(60)
    with_hidden_tokens = Arrivals(0, [50 * MS, 50 * MS, 650 * MS, 1230 * MS])
    assert token_count(with_hidden_tokens, itl_s=0.020) == pytest.approx(60)
    assert token_count(Arrivals(0, []), itl_s=0.020) == 0


@pytest.mark.parametrize("family", LENGTHEN)
def test_streamed_calls_and_json_are_lengthened_with_the_streams(family: str) -> None:
    assert b'"minLength":100' in next(streams_of(family, 50))
    assert b"minLength" not in next(requests_of(family))


@pytest.mark.parametrize("family", STREAMED)
def test_benchmark_requests_set_the_token_limit_field_of_each_api(family: str) -> None:
    requests = streams_of(family, 25)
    body = json.loads(next(requests).partition(b"\r\n\r\n")[2])
    limits = {key: body[key] for key in ("max_tokens", "max_output_tokens") if key in body}
    expected = {"max_tokens": 25}
    if family == "Responses":
        expected = {"max_output_tokens": 25}
    elif family == "Messages":  # its replies end anywhere up to the limit
        expected = {"max_tokens": 50}
    elif family in LENGTHEN:  # and these where their schema is satisfied
        expected = {"max_tokens": 250}
    assert limits == expected and body["stream"]
    assert next(requests) != next(requests)


def test_slow_stream_has_a_lower_speed_and_a_growing_drift() -> None:
    slow = stream(*[0.0] * 101, itl_ms=40)
    seen = pace([slow], RHYTHM)
    assert seen.speed == pytest.approx((50 + 100 * 20) / (50 + 100 * 40))
    assert seen.drift_ms == pytest.approx(20 * (88 - 12))
    assert pace([stream(*[4.0] * 40), stream(*[6.0] * 40)], RHYTHM).drift_ms == pytest.approx(
        0, abs=1e-9
    )
    assert drift_ms([[1, 1, 9, 9, 9, 9, 3, 3], [1, 1, -9, -9, -9, -9, 3, 3]]) == 2


@settings(max_examples=25)
@given(st.integers(0, 6), st.lists(st.integers(1, 400)))
def test_stream_events_are_counted_once_however_their_bytes_are_split(
    count: int, cuts: list[int]
) -> None:
    reply, counted = EventStream(), 0
    for piece in pieces(HEAD + events(count), cuts):
        assert not reply.done
        counted += reply.feed(piece)
    assert counted == count and reply.done
    reply.restart()  # the connection is used again
    assert (reply.feed(HEAD + events(3)), reply.done) == (3, True)
    body = events(count)
    whole, answer = (
        WholeReply(),
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body,
    )
    completed = [whole.feed(piece) for piece in pieces(answer, cuts)]
    assert completed == [0] * (len(completed) - 1) + [1] and whole.body == body


@pytest.mark.parametrize("reply", [EventStream(), WholeReply()])
def test_rejected_request_raises_an_error_and_is_not_measured(
    reply: EventStream | WholeReply,
) -> None:
    with pytest.raises(RefusedError, match="429"):
        reply.feed(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}")
