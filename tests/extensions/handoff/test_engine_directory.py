"""Lookups of engines: bootstrap servers that misbehave, and engines that are remembered."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat

import gevent
import msgspec
import pytest
from gevent.event import AsyncResult
from gevent.server import StreamServer
from gevent.socket import socket

from app.extensions.handoff import engine_directory
from app.extensions.handoff.bootstrap import EngineEntry
from app.extensions.handoff.engine_directory import EngineDirectory
from tests.stubs import unused_address

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def answering(answer: bytes, later_parts: Iterable[bytes] = ()) -> Iterator[str]:
    """The URL of a server that sends `answer` and then `rest`, as long as it is read."""

    def respond(client: socket, address: object) -> None:
        client.recv(65_536)
        try:
            client.sendall(answer)
            for part in later_parts:
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


def find_engine(
    url: str, engine_id: str = "e", directory: EngineDirectory | None = None
) -> tuple[str, int, str]:
    """What a directory finds: host, port and problem."""
    result: AsyncResult[tuple[str, int, str]] = AsyncResult()
    if directory is None:
        directory = EngineDirectory()

    def take_address(host: str, port: int, problem: str) -> None:
        result.set((host, port, problem))

    directory.find(url, engine_id, take_address)
    answer: tuple[str, int, str] = result.get(timeout=20)
    return answer


def test_engine_is_found_by_its_id() -> None:
    entries = {
        "0": EngineEntry("other", {"0": {"0": "tcp://h:1"}}),
        "1": EngineEntry("e", {"0": {"0": "tcp://pod:5601"}}),
    }
    with answering(whole(entries)) as url:
        assert find_engine(url) == ("pod", 5601, "")


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
def test_bootstrap_entry_without_an_address_is_reported(content: object) -> None:
    with answering(whole(content)) as url:
        assert find_engine(url)[2].startswith(f"bootstrap server {url}: ")


def test_endless_bootstrap_response_is_rejected_as_too_long() -> None:
    with answering(HEAD + b"\r\n", repeat(b"x" * 262_144)) as url:
        assert find_engine(url)[2].endswith("the response is larger than 1 MiB")


def test_slow_bootstrap_response_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_directory, "REQUEST_TIMEOUT_S", 0.2)
    with answering(HEAD + b"\r\n", repeat(b" ")) as url:
        assert find_engine(url)[2].startswith(f"bootstrap server {url}: ")


@pytest.mark.parametrize("url", ["", "http://", "pod:8998", "http://pod:port", "http://[::1"])
def test_invalid_bootstrap_url_is_reported(url: str) -> None:
    assert find_engine(url)[2]


def test_unreachable_or_non_http_bootstrap_server_is_reported() -> None:
    assert find_engine(f"http://{unused_address()}")[2]
    with answering(b"\x00\xff\r\n\r\n") as url:
        assert find_engine(url)[2]


def test_engine_that_was_found_is_looked_up_only_once() -> None:
    directory = EngineDirectory()
    entries = {
        "0": EngineEntry("e", {"0": {"0": "tcp://pod:5601"}}),
        "1": EngineEntry("f", {"0": {"0": "tcp://pod:5602"}}),
    }
    with answering(whole(entries)) as url:
        assert find_engine(url, directory=directory) == ("pod", 5601, "")
    # The server is gone now.
    assert find_engine(url, directory=directory) == ("pod", 5601, "")
    assert find_engine(url, "f", directory) == ("pod", 5602, "")
    assert find_engine(url, "g", directory)[2].startswith(f"bootstrap server {url}: ")


def test_engine_that_a_bootstrap_server_did_not_know_is_looked_up_again() -> None:
    directory = EngineDirectory()
    with answering(whole({})) as url:
        assert find_engine(url, directory=directory)[2].endswith("remote engine_id e not found")
    entries = {"0": EngineEntry("e", {"0": {"0": "tcp://pod:5601"}})}
    with answering(whole(entries)) as url:
        assert find_engine(url, directory=directory) == ("pod", 5601, "")


def test_concurrent_lookups_of_an_engine_share_one_query() -> None:
    entries = {"0": EngineEntry("e", {"0": {"0": "tcp://pod:5601"}})}
    queries = []

    def respond(client: socket, address: object) -> None:
        queries.append(client.recv(65_536))
        client.sendall(whole(entries))
        client.close()

    server = StreamServer(("127.0.0.1", 0), respond)
    server.start()
    url = f"http://127.0.0.1:{server.server_port}"
    directory = EngineDirectory()
    first: AsyncResult[tuple[str, int, str]] = AsyncResult()

    def take_address(host: str, port: int, problem: str) -> None:
        first.set((host, port, problem))

    directory.find(url, "e", take_address)
    unknown = find_engine(url, "f", directory)
    server.stop(timeout=0)
    assert first.get(timeout=20) == ("pod", 5601, "")
    assert unknown[2].endswith("remote engine_id f not found")
    assert len(queries) == 1


def test_failed_engine_lookup_does_not_affect_other_lookups() -> None:
    directory = EngineDirectory()
    entries = {"0": EngineEntry("e", {"0": {"0": "tcp://pod:5601"}})}

    def fail(host: str, port: int, problem: str) -> None:
        raise RuntimeError("broken")

    with answering(whole(entries)) as url:
        directory.find(url, "e", fail)
        assert find_engine(url, directory=directory) == ("pod", 5601, "")


def test_unexpected_error_of_a_bootstrap_query_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine_directory, "_engines_at", fail)
    directory = EngineDirectory()
    assert find_engine("http://pod:8998", directory=directory)[2].endswith("the query failed")
    assert find_engine("http://pod:8998", directory=directory)[2].endswith("the query failed")


def test_number_of_cached_engines_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_directory, "MAX_ENGINES", 2)
    directory = EngineDirectory()
    entries = {
        str(rank): EngineEntry(f"e{rank}", {"0": {"0": "tcp://pod:5601"}}) for rank in range(3)
    }
    with answering(whole(entries)) as url:
        assert find_engine(url, "e2", directory)[2] == ""
    assert find_engine(url, "e1", directory)[2] == ""
    assert find_engine(url, "e0", directory)[2] != ""
