"""Bootstrap servers that misbehave: a decode ends with a problem, and memory stays bounded."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat

import gevent
import msgspec
import pytest
from gevent.event import AsyncResult
from gevent.server import StreamServer
from gevent.socket import socket

from app.core.server.http.client import exchange
from app.extensions.handoff import bootstrap
from app.extensions.handoff.bootstrap import BootstrapServer, EngineEntry, Registration, find_engine
from tests.stubs import eventually, unused_address

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def answering(answer: bytes, rest: Iterable[bytes] = ()) -> Iterator[str]:
    """The URL of a server that sends `answer` and then `rest`, as long as it is read."""

    def respond(client: socket, address: object) -> None:
        client.recv(65_536)
        try:
            client.sendall(answer)
            for part in rest:
                client.sendall(part)
                gevent.sleep(0.01)
        except OSError:
            pass
        client.close()

    server = StreamServer(("127.0.0.1", 0), respond)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0)


def whole(content: object) -> bytes:
    body = msgspec.json.encode(content)
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def found(url: str, engine_id: str = "e") -> tuple[str, int, str]:
    """What `find_engine` finds: host, port and problem."""
    result: AsyncResult[tuple[str, int, str]] = AsyncResult()
    find_engine(url, engine_id, lambda *values: result.set(values))
    answer: tuple[str, int, str] = result.get(timeout=20)
    return answer


def test_an_engine_is_found_by_its_id() -> None:
    entries = {
        "0": EngineEntry("other", {"0": {"0": "tcp://h:1"}}),
        "1": EngineEntry("e", {"0": {"0": "tcp://pod:5601"}}),
    }
    with answering(whole(entries)) as url:
        assert found(url) == ("pod", 5601, "")


@pytest.mark.parametrize(
    "content",
    [
        {"0": {"engine_id": "e", "worker_addr": {}}},
        {"0": {"engine_id": "e", "worker_addr": {"0": {}}}},
        {"0": {"engine_id": "e", "worker_addr": {"0": {"0": "tcp://h:port"}}}},
        {"0": {"engine_id": "e"}},
        ["e"],
    ],
    ids=str,
)
def test_an_entry_without_an_address_is_a_problem(content: object) -> None:
    with answering(whole(content)) as url:
        assert found(url)[2].startswith(f"bootstrap server {url}: ")


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    with answering(HEAD + b"\r\n", repeat(b"x" * 262_144)) as url:
        assert found(url)[2].endswith("the answer is too long")


def test_a_slow_answer_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "REQUEST_TIMEOUT_S", 0.2)
    with answering(HEAD + b"\r\n", repeat(b" ")) as url:
        assert found(url)[2].startswith(f"bootstrap server {url}: ")


@pytest.mark.parametrize("url", ["", "http://", "pod:8998", "http://pod:port", "http://[::1"])
def test_an_address_that_is_no_url_is_a_problem(url: str) -> None:
    assert found(url)[2]


def test_a_closed_port_and_an_answer_that_is_not_http_are_problems() -> None:
    assert found(f"http://{unused_address()}")[2]
    with answering(b"\x00\xff\r\n\r\n") as url:
        assert found(url)[2]


def test_a_bootstrap_server_takes_a_bounded_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "MAX_REGISTRATIONS", 3)
    address = unused_address()
    host, _, port = address.rpartition(":")
    worker = Registration(engine_id="e", dp_rank=0, tp_rank=0, pp_rank=0, addr="tcp://h:1")
    server = BootstrapServer(host, int(port), worker)
    server.start()

    def status(rank: int) -> int:
        body = msgspec.json.encode(msgspec.structs.replace(worker, pp_rank=rank))
        return exchange(address, "POST", "/register", body)[0]

    def is_listening() -> bool:
        try:
            return exchange(address, "GET", "/query")[0] == 200
        except OSError:
            return False

    eventually(is_listening)
    assert [status(rank) for rank in (1, 2, 3, 4)] == [200, 200, 400, 400]
    server.close()
