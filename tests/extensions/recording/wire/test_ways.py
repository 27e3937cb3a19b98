"""A recording is replayed by any worker, over TLS, and in front of a real engine."""

import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path

import pytest
import requests

from tests.extensions.llm.remote.served import new_peer, served
from tests.extensions.recording.recordings import (
    CHAT,
    JSON_HEADERS,
    chat,
    exchange,
    exchanges_of,
    recording_proxy,
    written,
)
from tests.hostile.raw_client import PATIENCE_S, Wire, get, http_post, post
from tests.hostile.waits import wait_for_status
from tests.other_workers import WORKERS, served_by
from tests.running_server import running_server

STREAM = [(0.03 * number, b"data: %d\n\n" % number) for number in range(4)]
BYTES = b"".join(data for _, data in STREAM)
EXCHANGES = [
    exchange(chat("stream", stream=True), *STREAM),
    exchange(chat("whole"), (0.05, b'{"a": 1}'), headers=JSON_HEADERS),
    exchange(chat("broken", stream=True), (0.02, b"data: 1\n\n"), is_broken=True),
    exchange(chat("long"), (0.0, b"x" * 300_000), (0.02, b"y" * 300_000)),
]


def body_of(port: int, text: str) -> bytes:
    with Wire(port) as wire, closing(wire.post(chat(text, stream=True), CHAT).begin()) as response:
        assert response.status == 200
        return response.read()


@pytest.mark.parametrize("worker", WORKERS)
def test_every_worker_class_replays_recorded_responses(tmp_path: Path, worker: str) -> None:
    path = written(tmp_path / "r", EXCHANGES)
    with served_by(worker, tmp_path, SIM_REPLAY=path, SIM_REPLAY_MISS="not-found") as server:
        at_once = 1 if worker == "sync" else 4
        with ThreadPoolExecutor(at_once) as several:
            assert set(several.map(lambda _: body_of(server.port, "stream"), range(at_once))) == {
                BYTES
            }
        whole = post(server.port, chat("whole"), CHAT)
        assert (whole.body, whole.headers["content-type"]) == (b'{"a": 1}', "application/json")
        with pytest.raises((IncompleteRead, ConnectionResetError)):
            body_of(server.port, "broken")
        assert post(server.port, chat("long"), CHAT).body == b"x" * 300_000 + b"y" * 300_000
        assert post(server.port, chat("other"), CHAT).status == 404
        assert json.loads(get(server.port, "/admin/replay").body)["missed"] == 1


def test_recordings_are_made_and_replayed_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    trusted = tmp_path / "ca.pem"
    flags = ("--model=m", "--self-signed-certs")
    with running_server(*flags, "--replay", written(tmp_path / "r", EXCHANGES)) as live:
        trusted.write_text(ssl.get_server_certificate(("127.0.0.1", live.port)))
        with recording_proxy(f"https://127.0.0.1:{live.port}", tmp_path / "no") as proxy:
            refused = post(proxy.port, chat("whole"), CHAT)
            assert refused.status == 502
            assert "certificate" in refused.json()["error"]["message"]
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        with recording_proxy(f"https://127.0.0.1:{live.port}", first) as proxy:
            assert body_of(proxy.port, "stream") == BYTES
            with pytest.raises((IncompleteRead, ConnectionResetError)):
                body_of(proxy.port, "broken")
    complete, broken = exchanges_of(first)
    assert [chunk.data for chunk in complete.answer.chunks] == [data.decode() for _, data in STREAM]
    assert broken.answer.is_broken
    with running_server(*flags, "--replay", str(first)) as server:
        assert body_over_tls(server.port, "stream") == BYTES
        with pytest.raises((IncompleteRead, OSError)):
            body_over_tls(server.port, "broken")


def body_over_tls(port: int, text: str) -> bytes:
    unverified = ssl._create_unverified_context()
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
        unverified.wrap_socket(plain) as sock,
    ):
        sock.sendall(http_post(CHAT, json.dumps(chat(text, stream=True)).encode()))
        with closing(HTTPResponse(sock, method="POST")) as response:
            response.begin()
            return response.read()


def test_recorded_response_takes_precedence_over_the_real_engine(tmp_path: Path) -> None:
    peer = new_peer(tmp_path / "peer")
    path = written(tmp_path / "r", EXCHANGES)
    with served(peer, replay=path) as server:
        assert body_of(server.port, "stream") == BYTES
        assert post(server.port, chat("whole"), CHAT).body == b'{"a": 1}'
        assert peer.orders == []
        answer = post(server.port, {"messages": [{"role": "user", "content": "Hello"}]}, CHAT)
        assert answer.status == 200, answer.body
        assert [order["type"] for order in peer.orders][:1] == ["generate"]
        report = requests.get(server.url + "/admin/replay", timeout=20).json()
        assert (report["equal"], report["missed"]) == (2, 1)
        wait_for_status(server.port, 200)
