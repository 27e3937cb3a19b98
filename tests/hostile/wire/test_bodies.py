"""Bodies that nobody should send, some of hostile size:

each gets its answer, and the worker lives on.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.hostile.raw_client import (
    COMPLETIONS,
    Whole,
    Wire,
    ask,
    get,
    http_post,
    is_error,
    metric,
    post,
    wait_until,
)
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer, running_server

CHAT = "/v1/chat/completions"
JSON = "Content-Type: application/json"
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = (
        "--max-model-len",
        "300000",
        "--max-request-body-size-mb",
        "8",
        "--admin-key",
        "secret",
    )
    with stressed_server(*flags) as running:
        yield running


def sent(server: RunningServer, body: bytes, *headers: str, path: str = COMPLETIONS) -> Whole:
    with Wire(server.port) as wire:
        return wire.send(http_post(path, body, *headers)).answer()


NO_OBJECTS = {
    **dict.fromkeys((b"", b"null", b"[]", b'"text"', b"12"), "body"),
    **{b"{": "body.1", b'{"prompt": "a"': "body.14", b'{"prompt": "a"}}': "body.15"},
    **{b"{'prompt': 'a'}": "body.1", b"\x00\x01\x02": "body.0", b"=" * 1000: "body.0"},
}
"""Bodies, and the places that are named."""
UNTRIED = [
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "x": %b%b}'
    % (b"[" * 100_000, b"]" * 100_000),
    b'{"prompt": "\xff\xfe"}',
    b"\x80abc",
]


@pytest.mark.parametrize("path", [COMPLETIONS, "/tokenize"])
def test_error_for_an_invalid_json_body_states_the_position(
    server: RunningServer, path: str
) -> None:
    for body, param in NO_OBJECTS.items():
        is_error(sent(server, body, path=path), 400, "Bad Request", param)
    for body in UNTRIED:
        answer = sent(server, body, path=path)
        assert (answer.status, set(answer.json())) == (400, {"detail"}), "the framework's own"


def test_body_with_an_excessive_declared_length_is_rejected_at_once(
    server: RunningServer,
) -> None:
    for length in ((8 << 20) + 1, 10**12, 2**64 - 1):
        with Wire(server.port) as wire:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\n{JSON}\r\nContent-Length: {length}\r\n\r\n"
            is_error(wire.send(head.encode()).answer(), 413, "Request Entity Too Large")


def test_endless_chunked_body_is_rejected_at_the_size_limit(server: RunningServer) -> None:
    with Wire(server.port) as wire:

        def flood() -> None:
            try:
                wire.send(CHUNKED)
                for _ in range(64):
                    wire.send(b"40000\r\n" + b"a" * 0x40000 + b"\r\n")
            except OSError:
                pass

        flooding = threading.Thread(target=flood)
        flooding.start()
        is_error(wire.answer(), 413, "Request Entity Too Large")
        with suppress(OSError):  # the server has closed the connection, or will in a moment
            wire.sock.shutdown(socket.SHUT_RDWR)
        flooding.join()


def test_malformed_or_reset_bodies_do_not_affect_other_requests(
    server: RunningServer,
) -> None:
    for body in (
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}XX0\r\n\r\n",
        b"-1\r\n",
        b"\r\n",
        b"5;a=\r\r\n",
    ):
        with Wire(server.port) as wire:
            assert wire.send(CHUNKED + body).answer().status == 400
    for begun in (CHUNKED + b"ff\r\n{", http_post(COMPLETIONS, b'{"prompt": "a"}')[:-5]):
        with Wire(server.port) as wire:
            wire.send(begun)
            get(server.port, "/health")
            wire.reset()
        assert post(server.port, ask()).status == 200


CHUNKED_JSON = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (b'{"prompt": ', b'"a"}'))


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"100000000000000000\r\n", 400),
        (b"F" * 4000 + b"\r\n", 400),
        (b"F" * 20_000, 400),
        (b"0" * 17 + b"1\r\n", 400),
        (b"2;" + b"a" * 4200 + b"\r\n", 400),
        (b"1;" + b"a" * 4000 + b"\r\n \r\n", 0),
        ((b"1;" + b"a" * 4000 + b"\r\n \r\n") * 5, 400),
        (CHUNKED_JSON + b"0\r\n" + b"X: y\r\n" * 3000, 400),
        (CHUNKED_JSON + b"0\r\nX: " + b"y" * 20_000, 400),
        (b"800001\r\n", 413),
        (b"FFFFFFFFFFFFFFFF\r\n", 413),
        (CHUNKED_JSON + b"7FFFFF\r\n", 413),
        (b"800000\r\n", 0),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else str(value),
)
def test_oversized_chunk_is_rejected_before_its_bytes_are_received(
    server: RunningServer, begun: bytes, status: int
) -> None:
    """Status 0: the server waits for the rest, as it must."""
    with Wire(server.port) as wire:
        wire.send(CHUNKED + begun)
        if status:
            assert wire.answer().status == status
            assert wire.seconds_until_closed(5) < 5
        else:
            get(server.port, "/health")
            wire.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                wire.sock.recv(1)


@pytest.mark.parametrize("path", [COMPLETIONS, "/health", "/ping", "/nowhere"])
@pytest.mark.parametrize(
    ("codings", "status"),
    [
        (("gzip, chunked",), 400),
        (("gzip", "chunked"), 400),
        (("identity, chunked",), 400),
        (("Deflate,chunked",), 400),
        (("br, chunked",), 400),
        (("xchunked",), 400),
        (("chunked;q=1",), 400),
        (("",), 400),
        (("chunked, chunked",), 400),
        (("chunked", "chunked"), 400),
        (("chunked, gzip",), 400),
        (("gzip",), 400),
        (("identity",), 400),
    ],
    ids=str,
)
def test_unsupported_transfer_encoding_is_rejected(
    server: RunningServer, path: str, codings: tuple[str, ...], status: int
) -> None:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        JSON,
        *(f"Transfer-Encoding: {coding}" for coding in codings),
    ]
    with Wire(server.port) as wire:
        wire.send("\r\n".join(lines).encode() + b"\r\n\r\n" + CHUNKED_JSON + b"0\r\n\r\n")
        answer = wire.answer()
        assert answer.status == status
        assert wire.seconds_until_closed(5) < 5


def test_ambiguous_or_outdated_transfer_encodings_are_rejected(
    server: RunningServer,
) -> None:
    body = CHUNKED_JSON + b"0\r\nX: y\r\n\r\n"
    for head, status in (
        (CHUNKED.replace(b": chunked", b":\tCHUNKED "), 200),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"), 400),
        (CHUNKED.replace(b"Transfer-Encoding:", b"Transfer-Encoding :"), 400),
        (CHUNKED.replace(b"Transfer-Encoding:", b"Transfer-Encoding: x\r\n\t"), 400),
    ):
        with Wire(server.port) as wire:
            assert wire.send(head + body).answer().status == status, head


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
    ],
)
def test_invalid_http_request_returns_400_and_closes_the_connection(
    server: RunningServer, head: bytes
) -> None:
    with Wire(server.port) as wire:
        assert wire.send(head).answer().status == 400
        assert wire.seconds_until_closed(5) < 5


def served(server: RunningServer) -> float:
    return metric(server.port, "vllm:request_success_total")


def test_truncated_body_is_not_served_even_if_it_is_valid_json(
    server: RunningServer,
) -> None:
    served_before = served(server)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\n{JSON}\r\nContent-Length: 1000\r\n\r\n".encode()
    for body in (b'{"prompt":', json.dumps(ask()).encode()):
        with Wire(server.port) as wire:
            wire.send(head + body)
            wire.sock.shutdown(socket.SHUT_WR)
            assert b" 200 " not in wire.sock.recv(64)
    with Wire(server.port) as wire:
        wire.send(head + b'{"prompt":')
    assert post(server.port, ask()).status == 200
    assert served(server) == served_before + 1


def exchange_text(server: RunningServer, request: bytes) -> bytes:
    """What the server sends within a second, or until it closes the connection."""
    received = b""
    with Wire(server.port) as wire:
        wire.sock.settimeout(1.0)
        try:
            wire.send(request)
            while data := wire.sock.recv(65_536):
                received += data
        except TimeoutError:
            pass
    return received


NO_HTTP = (b"Content-Type: text/plain; charset=utf-8", b"\r\n\r\nInvalid HTTP request received.")
"""Parts of the response of vLLM's server to a request that is no HTTP."""


@pytest.mark.parametrize("length", [20_000, 70_000, 3_000_000])
def test_large_headers_are_accepted(server: RunningServer, length: int) -> None:
    with Wire(server.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: test\r\nX: " + b"a" * length + b"\r\n\r\n")
        assert wire.answer().status == 200


@pytest.mark.parametrize(("count", "status"), [(150, b"200"), (255, b"200"), (256, b"400")])
def test_number_of_headers_is_limited(server: RunningServer, count: int, status: bytes) -> None:
    lines = b"".join(b"X-%d: a\r\n" % number for number in range(count))
    answer = exchange_text(server, b"GET /health HTTP/1.1\r\nHost: t\r\n" + lines + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert (NO_HTTP[1] in answer) == (status == b"400")


def test_endless_headers_are_rejected(server: RunningServer) -> None:
    with Wire(server.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: test\r\nX: " + b"a" * 4_300_000)
        assert wire.answer().status == 400


def test_large_heads_of_all_clients_are_limited_together(server: RunningServer) -> None:
    """Incomplete heads of 4 MiB each took 1.8 GB with 300 clients."""
    part = b"GET /health HTTP/1.1\r\nHost: test\r\nX: " + b"a" * 4_100_000
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(12)]
        refused = 0
        for wire in wires:
            with suppress(OSError):  # the server may close before it has read everything
                wire.send(part)
            wire.sock.settimeout(0.5)
            with suppress(TimeoutError, ConnectionError):
                refused += b"400 Bad Request" in wire.sock.recv(65_536)
        assert 1 <= refused <= 5, "about 8 of these heads fit"
        assert get(server.port, "/health").status == 200, "a small head always fits"
    wait_until(lambda: _accepts_large_head(server))


def _accepts_large_head(server: RunningServer) -> bool:
    with Wire(server.port) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nHost: test\r\nX: " + b"a" * 4_000_000 + b"\r\n\r\n")
        return wire.answer().status == 200


def test_limits_of_headers_are_options() -> None:
    flags = ("--h11-max-header-count=3", "--h11-max-incomplete-event-size=9000")
    with running_server(*flags) as limited:
        for lines, status in (
            (b"A: a\r\nB: b\r\n", b"200"),
            (b"A: a\r\nB: b\r\nC: c\r\n", b"400"),
            (b"A: " + b"a" * 8_000 + b"\r\n", b"200"),
            (b"A: " + b"a" * 20_000 + b"\r\n", b"400"),
        ):
            request = b"GET /health HTTP/1.1\r\nHost: t\r\n" + lines + b"\r\n"
            assert exchange_text(limited, request).startswith(b"HTTP/1.1 " + status), lines[:20]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /health HTTP/3.7\r\nHost: t\r\n\r\n",
        b"G@T /health HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: t\r\nX Y: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\r\n b\r\n\r\n",
        b"GET /health?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: t\n\n",
        b"GET /health HTTP/1.2\r\nHost: t\r\n\r\n",
        b"FOO /health HTTP/1.1\r\nHost: t\r\n\r\n",
        b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET http://t HTTP/1.1\r\nHost: t\r\n\r\n",
        CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % (1 << 64)),
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}XX0\r\n\r\n",
        CHUNKED + b"2\n{}\n0\n\n",
        CHUNKED + b"2;\0\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\nX T 1\r\n\r\n",
    ],
    ids=lambda request: repr(request[:12] + request[-24:]),
)
def test_error_of_the_protocol_has_the_body_of_vllm(
    server: RunningServer, request_bytes: bytes
) -> None:
    answer = exchange_text(server, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    for part in NO_HTTP:
        assert part in answer


@pytest.mark.parametrize(
    "headers",
    [
        b"Host: t\r\nExpect: foo\r\n",
        b"Host: t\r\nExpect:\r\n",
        b"Host: t\r\nExpect: 200-ok\r\n",
        b"",
        b"Host:\r\n",
        b"Host: t\r\nHost: u\r\n",
        b"Host: t\r\nContent-Type: text/plain\r\nContent-Type: a/b\r\n",
    ],
)
def test_headers_that_vllms_server_ignores_are_accepted(
    server: RunningServer, headers: bytes
) -> None:
    request = b"GET /health HTTP/1.1\r\n" + headers + b"\r\n"
    assert exchange_text(server, request).startswith(b"HTTP/1.1 200 ")


def test_first_of_two_content_types_applies(server: RunningServer) -> None:
    body = json.dumps(ask()).encode()
    types = b"application/json\r\nContent-Type: text/plain"
    head = b"POST %b HTTP/1.1\r\nHost: t\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    request = head % (COMPLETIONS.encode(), types, len(body)) + body
    assert exchange_text(server, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("is_stream", [False, True])
def test_request_of_http_1_0_is_answered_with_http_1_1_and_closed(
    server: RunningServer, is_stream: bool
) -> None:
    """As nginx sends requests by default, and ab; vLLM's server also streams in chunks to them."""
    body = json.dumps(ask(stream=is_stream)).encode()
    request = http_post(COMPLETIONS, body, JSON, "Connection: keep-alive", version="1.0")
    answer = exchange_text(server, request)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close" in head
    assert (b"\r\nTransfer-Encoding: chunked" in head) == is_stream
    assert content.endswith(b"\r\n0\r\n\r\n") == is_stream


@pytest.mark.parametrize("start", [b"\r\n", b"\n", b"\r\n\r\n\r\n"])
def test_empty_lines_before_a_request_are_skipped(server: RunningServer, start: bytes) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"
    assert exchange_text(server, start + request).startswith(b"HTTP/1.1 200 ")
    with Wire(server.port) as wire:
        wire.send(request)
        assert wire.answer().status == 200
        wire.send(start)
        wire.send(request)
        assert wire.answer().status == 200


@pytest.mark.parametrize("protocol", ["h2c", "foo"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_request_for_a_protocol_upgrade_loses_its_body(
    server: RunningServer, protocol: str, is_chunked: bool
) -> None:
    """As Java's clients would in their first request; vLLM's server does not read the body."""
    body = json.dumps(ask()).encode()
    length = f"Content-Length: {len(body)}"
    if is_chunked:
        length = "Transfer-Encoding: chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lines = (
        f"POST {COMPLETIONS} HTTP/1.1",
        "Host: test",
        JSON,
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {protocol}",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        length,
    )
    with Wire(server.port) as wire:
        wire.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        answer = wire.answer()
        assert answer.status == 400
        assert b"Field required" in answer.body
        assert b"'loc': 'body'" in answer.body
        if is_chunked:  # its end is not searched
            assert answer.headers["connection"] == "close"
            return
        wire.send(b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert wire.answer().status == 200


# Of hostile size

GIGABYTE = 1 << 30
HELLO = [{"role": "user", "content": "a"}]
PIECE = b" " * 65_536


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/ping", (), 200), ("/admin/config", ("X-Admin-Key: wrong",), 401), (CHAT, (), 413)],
)
def test_gigabyte_body_that_is_not_read_closes_the_connection(
    server: RunningServer, path: str, headers: tuple[str, ...], status: int
) -> None:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        JSON,
        *headers,
        f"Content-Length: {GIGABYTE}",
    ]
    with Wire(server.port) as wire:
        wire.send("\r\n".join(lines).encode() + b"\r\n\r\n" + PIECE)
        assert wire.answer().status == status
        sent = 0
        with suppress(ConnectionError):  # the server lingers a moment, and then takes no more
            while sent < GIGABYTE // 4:
                wire.send(PIECE)
                sent += len(PIECE)
        assert sent < GIGABYTE // 4
    assert get(server.port, "/health").status == 200


def test_hundreds_of_thousands_of_one_byte_chunks_form_one_body(server: RunningServer) -> None:
    body = json.dumps(ask()).encode().ljust(400_000)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Wire(server.port) as wire:
        wire.sock.settimeout(120)
        wire.send(head.encode())
        for start in range(0, len(body), 20_000):
            wire.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body[start : start + 20_000]))
            if start == 200_000:
                assert get(server.port, "/health").status == 200
        wire.send(b"0\r\n\r\n")
        assert wire.answer().status == 200


def test_rejection_of_a_huge_response_names_the_fields_to_reduce(
    server: RunningServer,
) -> None:
    huge = {"messages": HELLO, "n": 128, "max_tokens": 40_000, "ignore_eos": True}
    answer = posted(server, huge | {"logprobs": True, "top_logprobs": 20})
    is_error(answer, 400, "BadRequestError")
    message = answer.json()["error"]["message"]
    assert "exceeds the limit of 64 MiB. Reduce n, max_tokens, or logprobs" in message


def test_huge_stream_starts_immediately_and_can_be_abandoned(server: RunningServer) -> None:
    huge = {"messages": HELLO, "n": 128, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    body = json.dumps(huge | {"logprobs": True, "top_logprobs": 20}).encode()
    with Wire(server.port) as wire:
        wire.send(http_post(CHAT, body))
        received = 0
        while received < 2_000_000:
            received += len(wire.sock.recv(1 << 20))
        assert get(server.port, "/health").status == 200
    assert post(server.port, ask()).status == 200


def posted(server: RunningServer, body: dict[str, Any]) -> Whole:
    with Wire(server.port) as wire:
        wire.sock.settimeout(120)
        return wire.send(http_post(CHAT, json.dumps(body).encode())).answer()
