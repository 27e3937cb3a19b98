"""A stream on its way to the socket: whatever the socket takes, the client gets the same bytes."""

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.api.responder import COMMENT, SLICE_TOKENS
from app.core.engine.outputs import EngineOutput, Failed, Started, Tokens
from tests.core.api.served_stream import END, Served, Socket, tokens


@given(
    takes=st.lists(st.integers(0, 12), max_size=30),
    pauses=st.lists(st.booleans(), min_size=31, max_size=31),
    count=st.integers(1, 30),
    early=st.integers(0, 30),
    plain=st.lists(st.booleans(), min_size=31, max_size=31),
    large=st.sets(st.integers(0, 30)),
)
@settings(max_examples=25, deadline=None)
def test_stream_writes_the_same_bytes_for_any_socket_write_sizes(
    takes: list[int], pauses: list[bool], count: int, early: int, plain: list[bool], large: set[int]
) -> None:
    """`early` events come before the server begins to iterate; `plain` ones come each by itself,
    and may be written as JSON; `large` ones are more than a slice.
    """
    texts = [f"<{k}>" for k in range(count)]
    served = Served(Socket(*takes))
    events: list[EngineOutput] = [Started(0, 0.0)]
    events += [
        tokens(text, last=k == count - 1, ids=600 if k in large else 1)
        for k, text in enumerate(texts)
    ]
    take = served.stream.emit(events.pop(0))
    assert take is not None

    def tell(event: EngineOutput, is_plain: bool) -> None:
        if is_plain and isinstance(event, Tokens) and event.finish is None and len(event.ids) == 1:
            take(event.texts[0], 0, 0.0)
        else:
            served.stream.emit(event)

    for event, is_plain in zip(events[:early], plain, strict=False):
        tell(event, is_plain)
    served.serve()
    for event, is_plain, pause in zip(events[early:], plain[early:], pauses, strict=False):
        tell(event, is_plain)
        if pause:
            gevent.sleep(0)
    assert served.ended()
    assert served.socket
    expected = "".join(texts).encode() + END
    assert served.content().replace(b'"', b"") == expected
    assert served.plain.most_at_once <= SLICE_TOKENS


def test_waiting_tokens_of_each_choice_are_merged_while_the_client_is_slow() -> None:
    """A million separate outputs would hold the event loop for each garbage collection."""
    choices = 3
    count = 200
    served = Served(Socket(), choices=choices)
    served.serve()
    assert served.stream.transport is not None
    served.stream.transport.lags = True
    for number in range(count):
        for choice in range(choices):
            served.stream.emit(tokens(f"<{choice}.{number}>", choice, last=number == count - 1))
    assert len(served.stream._pending) == choices
    served.stream.transport.lags = False
    served.stream._send_slice(served.stream.transport)
    assert served.ended()
    expected = "".join(
        f"<{choice}.{number}>" for choice in range(choices) for number in range(count)
    )
    assert served.content() == expected.encode() + END


def test_client_disconnect_is_detected_while_nothing_is_written() -> None:
    served = Served(Socket())
    served.serve()
    assert served.socket and served.socket.watching
    served.socket.watching()
    assert served.running.aborted and served.ended()
    served.stream.emit(tokens("nobody"))
    assert served.socket.received == b""


@pytest.mark.parametrize("socket", [None, Socket()], ids=["no socket", "not direct"])
def test_stream_events_are_yielded_if_direct_writes_are_unavailable(
    socket: Socket | None,
) -> None:
    served = Served(socket, direct=False)
    served.serve()
    for text in ("a", "b"):
        served.stream.emit(tokens(text))
        gevent.sleep(0)
    served.stream.emit(tokens("c", last=True))
    assert served.ended()
    assert served.yielded == [b"", b"a", b"b", b"c" + END]
    assert socket is None or (socket.received == b"" and socket.watched)


@pytest.mark.parametrize("direct", [False, True])
def test_failure_of_one_choice_ends_the_whole_stream(direct: bool) -> None:
    served = Served(Socket(), choices=3, direct=direct)
    served.serve()
    served.stream.emit(tokens("a", 0))
    served.stream.emit(Failed(1, ValueError()))
    served.stream.emit(tokens("b", 0, last=True))
    served.stream.emit(tokens("c", 2, last=True))
    assert served.ended() and served.running.aborted
    assert served.socket
    assert served.content() == b"a[failed]" + END


@pytest.mark.parametrize("direct", [True, False], ids=["attached", "iterated"])
def test_idle_stream_sends_keep_alive_comments(direct: bool) -> None:
    """Only while it says nothing; the end stops it."""
    socket = Socket()
    served = Served(socket, direct=direct, keep_alive_s=0.05)
    served.serve()
    gevent.sleep(0.12)
    served.stream.emit(tokens("a"))
    gevent.sleep(0.03)
    served.stream.emit(tokens("b"))
    gevent.sleep(0.03)
    served.stream.emit(tokens("c", last=True))
    assert served.ended()
    body = served.content()
    assert body.startswith(COMMENT) and body.replace(COMMENT, b"") == b"abc" + END
    assert served.stream.bytes_sent == len(body)
    gevent.sleep(0.1)
    assert len(body) == len(served.content())
