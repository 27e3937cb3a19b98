"""What the load client makes of arrivals: synthetic ones here, no clock and no socket."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arrivals import Arrivals, Rhythm, drift_ms, errors_ms, pace, quantile
from benchmarks.client import ClientHealth
from benchmarks.replies import EventStream, RefusedError, WholeReply
from benchmarks.report import medians, number, ratio
from benchmarks.stamps import SO_TIMESTAMPNS, TIMESPEC, stamp_ns
from benchmarks.streams import Observation

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
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in body) + b"0\r\n\r\n"


def pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    """`text` in the pieces that recv could give."""
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(text)), len(text)]
    return [text[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]


def test_an_error_is_the_distance_from_request_plus_ttft_plus_k_itls() -> None:
    assert errors_ms(stream(0, 0.5, -0.25, requested_ns=7 * MS), RHYTHM) == pytest.approx([0, 0.5, -0.25])


def test_the_role_chunk_is_not_counted() -> None:
    with_role = Arrivals(0, [50 * MS, *stream(1, 2).chunks_ns])
    assert errors_ms(with_role, Rhythm(0.050, 0.020, skipped=1)) == pytest.approx([1, 2])


def test_early_is_as_bad_as_late() -> None:
    seen = pace([stream(-3, 1, 1, 1)], RHYTHM)
    assert (seen.ttft_p50_ms, seen.chunk_max_ms, seen.chunk_p50_ms) == pytest.approx((3, 3, 1))


def test_streams_that_fall_behind_lose_speed_and_drift() -> None:
    slow = stream(*[0.0] * 101, itl_ms=40)
    seen = pace([slow], RHYTHM)
    assert seen.speed == pytest.approx((50 + 100 * 20) / (50 + 100 * 40))
    assert seen.drift_ms == pytest.approx(20 * (88 - 12))


def test_a_constant_delay_is_no_drift() -> None:
    seen = pace([stream(*[4.0] * 40), stream(*[6.0] * 40)], RHYTHM)
    assert seen.drift_ms == pytest.approx(0, abs=1e-9)


def test_drift_is_the_last_quarter_minus_the_first_quarter() -> None:
    assert drift_ms([[1, 1, 9, 9, 9, 9, 3, 3], [1, 1, -9, -9, -9, -9, 3, 3]]) == 2


def test_streams_of_which_nothing_came_are_left_out() -> None:
    seen = pace([Arrivals(0, []), stream(1, 1)], RHYTHM)
    assert seen.chunks == 2
    assert seen.chunk_max_ms == pytest.approx(1)


def test_nothing_at_all_gives_figures_that_are_not_numbers() -> None:
    seen = pace([], RHYTHM)
    assert seen.chunks == 0
    assert all(
        math.isnan(value) for value in (seen.speed, seen.ttft_p99_ms, seen.chunk_max_ms, seen.drift_ms)
    )


@given(st.lists(st.integers(-1000, 1000), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_a_value_that_the_share_is_not_above(values: list[int], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_of_a_hundred_values_the_99th_is_p99() -> None:
    assert quantile(list(range(100, 0, -1)), 0.99) == 99


@given(st.integers(0, 6), st.lists(st.integers(1, 400)))
def test_events_are_counted_once_however_they_are_cut(count: int, cuts: list[int]) -> None:
    reply = EventStream()
    received = pieces(HEAD + events(count), cuts)
    counted = 0
    for piece in received:
        assert not reply.done
        counted += reply.feed(piece)
    assert counted == count
    assert reply.done


@given(st.binary(max_size=60), st.lists(st.integers(1, 120)))
def test_a_whole_reply_ends_with_its_content_length(body: bytes, cuts: list[int]) -> None:
    reply = WholeReply()
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    completed = [reply.feed(piece) for piece in pieces(whole, cuts)]
    assert completed == [0] * (len(completed) - 1) + [1]
    assert reply.body == body


def test_a_connection_is_used_again() -> None:
    reply = EventStream()
    reply.feed(HEAD + events(1))
    reply.restart()
    assert (reply.feed(HEAD + events(3)), reply.done) == (3, True)


@pytest.mark.parametrize("reply", [EventStream(), WholeReply()])
def test_a_refusal_is_never_measured(reply: EventStream | WholeReply) -> None:
    with pytest.raises(RefusedError, match="429"):
        reply.feed(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}")


def test_a_client_that_is_the_bottleneck_says_so() -> None:
    assert ClientHealth(cpu=0.3, waited=0.0, lag_p99_ms=0.2).warnings(lag_limit_ms=1) == []
    assert "bottleneck" in ClientHealth(cpu=0.9, waited=0.0, lag_p99_ms=0.2).warnings()[0]
    assert "late" in ClientHealth(cpu=0.3, waited=0.0, lag_p99_ms=5.0).warnings(lag_limit_ms=1)[0]
    assert "other processes" in ClientHealth(cpu=0.3, waited=0.2, lag_p99_ms=0.2).warnings()[0]


def test_lateness_of_the_client_matters_more_when_the_kernel_does_not_tell_the_time() -> None:
    late = ClientHealth(cpu=0.3, waited=0.0, lag_p99_ms=5.0)
    figures = pace([stream(0, 0)], RHYTHM)
    assert Observation(figures, 0, stamped=True, client=late).warnings("server", RHYTHM) == []
    assert len(Observation(figures, 0, stamped=False, client=late).warnings("server", RHYTHM)) == 1


def test_streams_that_did_not_finish_are_told() -> None:
    well = ClientHealth(cpu=0.1, waited=0.0, lag_p99_ms=0.1)
    seen = Observation(pace([], RHYTHM), 3, stamped=True, client=well)
    assert seen.warnings("server", RHYTHM) == ["3 streams of server did not finish"]


def test_a_time_stamp_of_the_kernel_is_unix_time() -> None:
    stamp = (socket.SOL_SOCKET, SO_TIMESTAMPNS, TIMESPEC.pack(1_700_000_000, 5))
    assert stamp_ns([(0, 0, b""), stamp]) == 1_700_000_000_000_000_005
    assert stamp_ns([]) == 0


@dataclass(frozen=True)
class Row:
    per_s: float
    late_ms: float


def test_medians_are_taken_of_each_column_by_itself() -> None:
    assert medians([Row(1, 30), Row(2, 10), Row(3, 20)]) == Row(2, 20)


def test_what_is_not_known_is_a_dash() -> None:
    assert (number(math.nan), ratio(3, 0), ratio(3, 2)) == ("–", "–", "1.50x")
    assert (number(-0.001), number(12345.678, 1)) == ("0.00", "12,345.7")
