"""Messages of strangers to the side channel of each connector: none ends the listener."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
import requests
import zmq
from msgspec import msgpack

from tests.client import Client, served
from tests.running_server import free_port

QUESTION = {
    "number": 5,
    "engine_id": "nobody",
    "message": {"type": "done", "request_id": "x", "reader": "y"},
}
MESSAGE = msgpack.encode(QUESTION)
BAD_TEXT = b"\x82\xa6number\x01\xa9engine_id\xa2\xff\xfe"


def with_message(message: object) -> bytes:
    return msgpack.encode({**QUESTION, "message": message})


HOSTILE = [
    [b"", BAD_TEXT],
    [b"", b""],
    [b""],
    [b"x"],
    [b"x", MESSAGE],
    [b"", MESSAGE, b"more"],
    [b"", MESSAGE[:-3]],
    [b"", b"\x91" * 100_000],
    [b"", b"\x81\xa1x" * 100_000],
    [b"", b"\xdd\xff\xff\xff\xff"],
    [b"", b"\xdf\xff\xff\xff\xff"],
    [b"", b"\xc6\xff\xff\xff\xff"],
    [b"", b"\xc1"],
    [b"", msgpack.encode([1, 2, 3])],
    [b"", msgpack.encode({**QUESTION, "number": -(2**63)})],
    [b"", msgpack.encode({**QUESTION, "number": 2**64 - 1})],
    [b"", msgpack.encode({**QUESTION, "number": "5"})],
    [b"", msgpack.encode({**QUESTION, "number": 5.5})],
    [b"", msgpack.encode({**QUESTION, "engine_id": "e" * 500_000})],
    [b"", msgpack.encode({**QUESTION, "engine_id": None})],
    [b"", with_message(None)],
    [b"", with_message({"type": "unknown"})],
    [b"", with_message({"type": 5})],
    [b"", with_message({"type": "read", "request_id": "x"})],
    [b"", with_message({"type": "heartbeat", "request_ids": ["x"] * 9999})],
    [b"", with_message({"type": "lookup", "request_id": "x", "keys": [b""]})],
    [b"", with_message({"type": "store", "keys": [b"k"] * 30_000})],
    [b"", with_message({"type": "store", "keys": ["\0"]})],
    [b"", with_message({"type": "read", "request_id": "", "reader": ""})],
    [b"", msgpack.encode({**QUESTION, "more": {"a": [[]]}})],
    [b"", b"\xff" * 1000],
    [b"", b"\x82\xa6number\x01\xa9engine_id\xdb\xff\xff\xff\xff"],
    [b"", b"GET / HTTP/1.1\r\n\r\n"],
]  # fmt: skip


@contextmanager
def pod(connector: str) -> Iterator[tuple[Client, int]]:
    """A pod with an open side channel, and the port of that."""
    port = free_port()
    flags = ["--enable-kvcache", "--kv-connector", connector]
    flags += ["--kv-side-channel-host", "127.0.0.1", "--kv-side-channel-port", str(port)]
    if connector == "mooncake":
        flags += ["--mooncake-bootstrap-port", str(free_port())]
    with served(*flags) as client:
        if connector == "nixl":
            transfer = {"do_remote_decode": True}
            client.complete(prompt="Hi", max_tokens=1, kv_transfer_params=transfer)
        yield client, port


def is_answered(port: int) -> bool:
    """Returns whether the listener answers a valid question."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send_multipart([b"", MESSAGE])
        return bool(socket.poll(10_000)) and socket.recv_multipart()[0] == b""


def send(port: int, messages: list[list[bytes]]) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 2_000
        socket.connect(f"tcp://127.0.0.1:{port}")
        for frames in messages:
            socket.send_multipart(frames)


@pytest.mark.parametrize("connector", ["nixl", "nixl-push", "mooncake", "moriio", "p2p", "lmcache"])
def test_hostile_messages_leave_the_side_channel_listening(connector: str) -> None:
    random = Random(7)
    mutated = []
    for _ in range(300):
        message = bytearray(MESSAGE)
        for _ in range(random.randrange(1, 5)):
            message[random.randrange(len(message))] = random.randrange(256)
        mutated.append([b"", bytes(message)])
    with pod(connector) as (client, port):
        assert is_answered(port)
        send(port, [[b"", BAD_TEXT]])
        assert is_answered(port)
        started_s = time.monotonic()
        send(port, HOSTILE + mutated)
        assert is_answered(port)
        seconds = time.monotonic() - started_s
        assert requests.get(f"{client.server.url}/health/ready", timeout=20).status_code == 200
        log = client.server.log()
        assert "Traceback" not in log
        assert log.count("side channel: ignoring") <= seconds + 3
