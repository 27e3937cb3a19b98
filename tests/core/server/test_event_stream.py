"""The reader of server-sent events, and what the readers before it returned."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.server.http import event_stream
from app.core.server.http.event_stream import EventReader, events_of
from config.untrusted import UntrustedDataError

WORDS = st.text("abc: {}[]\"'é", max_size=8).map(str.strip).map(str.encode).filter(bool)


def data_of(text: bytes, cuts: Sequence[int] = ()) -> list[bytes]:
    """Returns the data of the events in a stream that arrives in pieces."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    return [event.data for _, event in events_of(enumerate(pieces))]


def data_lines(text: bytes) -> list[bytes]:
    """Returns what the readers of recordings returned: the data in each line."""
    lines = text.split(b"\n")[:-1]
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def lines_with_a_space(text: bytes) -> list[bytes]:
    """Returns what the clients of record and drill returned: they needed a space."""
    lines = text.split(b"\n")[:-1]
    return [line[6:].strip() for line in lines if line.startswith(b"data: ")]


@given(st.lists(WORDS, max_size=6), st.lists(st.integers(0, 200)), st.sampled_from(["\n", "\r\n"]))
def test_events_are_those_of_all_earlier_readers(
    data: list[bytes], cuts: list[int], line_end: str
) -> None:
    end = line_end.encode()
    text = b"".join(b"event: e" + end + b"data: " + part + end + end for part in data)
    assert data_of(text, cuts) == data, "every event once, however the stream is cut"
    assert data_lines(text) == data, "recorded replies"
    assert lines_with_a_space(text) == data, "record and drill"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (b"data:1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data: 1\ndata: 2\n\n", [b"1\n2"]),
        (b": ping\n\ndata\n\nid: 5\ndata: 1\n\n", [b"1"]),
        (b"data: 1\r\rdata: 2\r\r", [b"1", b"2"]),
        (b"data: 1\n\ndata: 2\n", [b"1", b"2"]),
        (b"data: 1\n\ndata: 2", [b"1"]),
        (b"data:  1 \n\n", [b" 1 "]),
        (b"\n\n\n\n", []),
    ],
)
def test_streams_are_read_as_the_standard_says(text: bytes, data: list[bytes]) -> None:
    assert data_of(text) == data, "in one piece"
    assert data_of(text, range(len(text))) == data, "byte by byte"


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_no_byte_of_a_stream_is_lost(text: bytes, cuts: list[int]) -> None:
    reader = EventReader()
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    raw = [event.raw for start, end in pairwise(places) for event in reader.feed(text[start:end])]
    assert b"".join(raw) + reader.remainder == text, "raw bytes of the events and the remainder"


def test_event_larger_than_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    with pytest.raises(UntrustedDataError, match="an event is larger than"):
        list(reader.feed(b"data: " + bytes(200)))


def test_last_event_of_openai_streams_is_known() -> None:
    events = [event.is_done for _, event in events_of([(0.0, b"data: {}\n\ndata:[DONE]\n\n")])]
    assert events == [False, True], "with and without a space"
