"""A target answers unrecorded requests, whose exchanges are recorded for equal requests."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import requests

from app.extensions.recording.exchange import bytes_of, read_exchange
from tests.extensions.recording.recordings import CHAT, chat, exchange, exchanges_of, written
from tests.hostile.raw_client import Wire, post, wait_until
from tests.hostile.waits import wait_for_log
from tests.other_workers import WORKERS, served_by
from tests.running_server import RunningServer, running_server
from tests.sdks import openai

FLAGS = ("--force-dummy-tokenizer", "--model", "m", "--replay-miss", "record")
UPSTREAM = ("--force-dummy-tokenizer", "--model", "m", "--journal", "100")
KEY = "sk-ours-1"
TARGET_KEY = "sk-theirs-1"


def journal_of(server: RunningServer) -> list[dict[str, Any]]:
    """The requests that a server has had, by its journal."""
    entries: list[dict[str, Any]] = requests.get(server.url + "/admin/journal", timeout=20).json()[
        "entries"
    ]
    return entries


def report(server: RunningServer) -> dict[str, Any]:
    report_body: dict[str, Any] = requests.get(server.url + "/admin/replay", timeout=20).json()
    return report_body


@pytest.fixture(scope="module")
def upstream() -> Iterator[RunningServer]:
    with running_server(*UPSTREAM) as server:
        yield server


@contextmanager
def saying(*parts: bytes) -> Iterator[tuple[str, Event]]:
    """The URL of a server that sends `parts` to a client, and then waits; the event tells that one
    left.
    """
    left = Event()

    def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port.append(listener.getsockname()[1])
            listening.set()
            while not over.is_set():
                client, _ = listener.accept()
                with client, suppress(OSError):
                    received = client.recv(65536)
                    for part in parts:
                        client.sendall(part)
                    while received and not over.is_set():
                        received = client.recv(65536)
                    left.set()

    port: list[int] = []
    listening = Event()
    over = Event()
    thread = Thread(target=serve)
    thread.start()
    listening.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}", left
    finally:
        over.set()
        socket.create_connection(("127.0.0.1", port[0])).close()
        thread.join(10)


def test_repeated_openai_sdk_request_is_answered_from_the_recording(
    tmp_path: Path, upstream: RunningServer
) -> None:
    file = tmp_path / "grows"
    count_before = len(journal_of(upstream))
    flags = (*FLAGS, "--replay", str(file), "--target", upstream.url, "--journal", "100")
    with running_server(*flags) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="theirs")

        def texts() -> list[str]:
            messages: Any = [{"role": "user", "content": "Record me"}]
            whole = client.chat.completions.create(model="m", messages=messages)
            stream = client.chat.completions.create(model="m", messages=messages, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            assert len(pieces) > 2
            return [whole.choices[0].message.content or "", "".join(pieces)]

        first = texts()
        assert [entry["text"] for entry in journal_of(server)] == first, (
            "as soon as they are answered"
        )
        assert texts() == first
        assert len(journal_of(upstream)) - count_before == 2
        assert [model.id for model in client.models.list()] == ["m"]
        wait_until(lambda: report(server)["recorded"] == 3)  # the list of models, too
        counts = report(server)
        assert (counts["equal"], counts["missed"]) == (2, 2)
    assert "theirs" not in file.read_text()
    with running_server(
        "--force-dummy-tokenizer", "--replay", str(file), "--replay-miss", "not-found"
    ) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="other")
        assert texts() == first


def test_stream_is_forwarded_piece_by_piece(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    with (
        saying(head, b"data: 1\n\n") as (url, left),
        running_server(*FLAGS, "--replay", str(tmp_path / "r"), "--target", url) as server,
        Wire(server.port) as wire,
    ):
        with closing(wire.post(chat("Hi", stream=True), CHAT).begin()) as response:
            assert response.read1() == b"data: 1\n\n", "the target has not ended its answer"
        wire.reset()
        assert left.wait(20), "a client that leaves ends its request to the target"
        assert exchanges_of(tmp_path / "r") == []
        wait_for_log(server, "not kept: POST /v1/chat/completions: the client left")


def test_error_for_an_unusable_target_response_names_the_target(
    tmp_path: Path,
) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b"data: 1\n\n"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with (
        saying() as (silent, _),
        saying(*half) as (halting, _),
        saying(b"nonsense\r\n\r\n") as (strange, _),
    ):
        targets = [
            f"silent={silent}",
            f"halting={halting}",
            f"strange={strange}",
            f"closed={closed}",
        ]
        file = tmp_path / "r"
        flags = ("--target-timeout", "0.3s")
        with running_server(*FLAGS, *flags, "--replay", str(file), "--target", *targets) as server:
            for model, status, line in (
                ("silent", 504, f"{silent} did not answer within 0.3 s."),
                ("closed", 502, f"{closed} gave no answer: Connection refused."),
                (
                    "strange",
                    502,
                    f"{strange} gave no answer: the response is not valid HTTP: BadStatusLine",
                ),
                (
                    "other",
                    404,
                    "No target serves the model `other`. Models with a target: silent, halting",
                ),
            ):
                answer = post(server.port, {**chat("Hi"), "model": model}, CHAT)
                error = answer.json()["error"]
                assert (answer.status, error["code"]) == (status, status)
                assert error["message"].startswith(line), error
            with Wire(server.port) as wire, pytest.raises((HTTPException, OSError)):
                wire.post({**chat("Hi", stream=True), "model": "halting"}, CHAT)
                with closing(wire.begin()) as response:
                    heard = b""
                    try:
                        while piece := response.read1():
                            heard += piece
                    finally:
                        assert heard.startswith(b'data: 1\n\ndata: {"error"'), heard
            assert post(server.port, {"prompt": "Hi"}, "/tokenize").status == 404
            assert server.log().count("not kept: ") == 6
    assert exchanges_of(file) == []


LENGTHS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n{}"
)


def test_conflicting_content_lengths_return_an_error(tmp_path: Path) -> None:
    with saying(LENGTHS % 2) as (equal, _), saying(LENGTHS % 3) as (different, _):
        targets = ("--target", f"equal={equal}", f"different={different}")
        with running_server(*FLAGS, "--replay", str(tmp_path / "r"), *targets) as server:
            for _ in range(2):
                answer = post(server.port, {**chat("Hi"), "model": "equal"}, CHAT)
                assert (answer.status, answer.headers["content-length"], answer.body) == (
                    200,
                    "2",
                    b"{}",
                )
            answer = post(server.port, {**chat("Hi"), "model": "different"}, CHAT)
            error = answer.json()["error"]
            assert (answer.status, error["code"], error["type"]) == (502, 502, "Bad Gateway")
            assert "invalid Content-Length: 2, 3" in error["message"]
    assert len(exchanges_of(tmp_path / "r")) == 1


@contextmanager
def trickling(start: bytes, part: bytes) -> Iterator[str]:
    """The URL of a server that sends `part` again and again after `start`, until its client leaves."""

    def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port.append(listener.getsockname()[1])
            listening.set()
            while not over.is_set():
                client, _ = listener.accept()
                with client, suppress(OSError):
                    client.recv(65536)
                    client.sendall(start)
                    while not over.wait(0.05):
                        client.sendall(part)

    port: list[int] = []
    listening = Event()
    over = Event()
    thread = Thread(target=serve)
    thread.start()
    listening.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        over.set()
        socket.create_connection(("127.0.0.1", port[0])).close()
        thread.join(10)


def test_slow_target_response_times_out(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    chunked = head + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    with (
        trickling(b"", b"H") as status_line,
        trickling(head + b"X: ", b"x") as header,
        trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n") as informational,
        trickling(chunked + b"9\r\ndata: 1\n\n\r\n5;", b"x") as chunk_size,
    ):
        targets = (
            f"line={status_line}",
            f"header={header}",
            f"continue={informational}",
            f"chunk={chunk_size}",
        )
        flags = ("--replay", str(tmp_path / "r"), "--target-timeout", "1s", "--target", *targets)
        with running_server(*FLAGS, *flags) as server:
            for model in ("line", "header", "continue"):
                answer = post(server.port, {**chat("Hi"), "model": model}, CHAT)
                error = answer.json()["error"]
                assert (answer.status, error["code"], error["type"]) == (
                    504,
                    504,
                    "GatewayTimeoutError",
                )
                assert "did not answer within 1 s" in error["message"]
            with Wire(server.port) as wire, pytest.raises((HTTPException, OSError)):
                wire.post({**chat("Hi", stream=True), "model": "chunk"}, CHAT).answer()
            wait_for_log(server, "its answer did not continue within 1 s")
    assert exchanges_of(tmp_path / "r") == []


def test_broken_response_is_recorded_and_replayed_as_broken(tmp_path: Path) -> None:
    recorded = written(
        tmp_path / "up", [exchange(chat("Hi"), (0, b"1"), (0, b"2"), is_broken=True)]
    )
    file = tmp_path / "r"
    with (
        running_server("--force-dummy-tokenizer", "--replay", recorded) as live,
        running_server(*FLAGS, "--replay", str(file), "--target", live.url) as server,
    ):
        for _ in range(2):
            with pytest.raises((HTTPException, OSError)):
                post(server.port, chat("Hi"), CHAT)
        assert (report(server)["equal"], report(live)["equal"]) == (1, 1)
    [recorded_exchange] = exchanges_of(file)
    assert recorded_exchange.answer.is_broken


def test_transient_failures_are_forwarded_but_not_recorded(
    tmp_path: Path, upstream: RunningServer
) -> None:
    file = tmp_path / "r"
    with running_server(*UPSTREAM, "--api-key", TARGET_KEY) as live:
        keyed = live.url.replace("://", f"://{TARGET_KEY}@")
        flags = ("--replay", str(file), "--target", f"keyless={live.url}", "--target", keyed)
        with running_server(*FLAGS, *flags, "--api-key", KEY) as server:
            ours = {"Authorization": f"Bearer {KEY}"}

            def status(key: str, **fields: Any) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                body = {**chat("Hi", max_tokens=1), **fields}
                return requests.post(
                    server.url + CHAT, json=body, headers=headers, timeout=20
                ).status_code

            assert status(TARGET_KEY) == 401, "clients bear our key"
            assert status(KEY) == 200, "and the target gets its own"
            assert status(KEY, model="keyless") == 401, "never ours"
            assert status(KEY, max_tokens=-1) == 400
            settings = requests.get(server.url + "/admin/config", headers=ours, timeout=20).json()
            assert settings["target"] == "***"
            assert TARGET_KEY not in server.log()
            assert server.stop() == 0
    recorded = exchanges_of(file)
    assert sorted(exchange.answer.status for exchange in recorded) == [200, 400]
    text = file.read_text()
    assert TARGET_KEY not in text and KEY not in text


def test_replay_miss_header_overrides_the_setting_for_one_request(
    tmp_path: Path, upstream: RunningServer
) -> None:
    file = written(tmp_path / "r", [exchange(chat("known"), (0, b"1"))])
    with running_server(*FLAGS, "--replay", file, "--target", upstream.url) as server:

        def answer(text: str, miss: str) -> requests.Response:
            headers = {"X-Replay-Miss": miss}
            return requests.post(
                server.url + CHAT, json=chat(text, max_tokens=1), headers=headers, timeout=20
            )

        count_before = len(journal_of(upstream))
        assert answer("new", "not-found").status_code == 404
        assert answer("new", "simulate").ok
        assert len(journal_of(upstream)) == count_before
        refused = answer("new", "nearest")
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert message == "X-Replay-Miss must be one of simulate, not-found, record, got 'nearest'."
        assert answer("new", "record").ok
        assert len(journal_of(upstream)) == count_before + 1
        assert answer("new", "not-found").ok, "it is recorded now"


def test_simultaneous_equal_requests_reach_the_target_once(tmp_path: Path) -> None:
    with (
        running_server(*UPSTREAM, "--time-to-first-token", "500ms") as live,
        running_server(*FLAGS, "--replay", str(tmp_path / "r"), "--target", live.url) as server,
        ThreadPoolExecutor(6) as several,
    ):
        answers = list(several.map(lambda _: post(server.port, chat("Hi"), CHAT).body, range(6)))
        assert len(set(answers)) == 1
        assert len(journal_of(live)) == 1
    assert len(exchanges_of(tmp_path / "r")) == 1


def test_ranks_share_the_recording_file(tmp_path: Path, upstream: RunningServer) -> None:
    file = tmp_path / "r"
    flags = ("--replay", str(file), "--target", upstream.url, "--data-parallel-size", "2")
    with running_server(*FLAGS, *flags) as server:
        count_before = len(journal_of(upstream))
        ports = (server.port, server.port + 1)
        bodies = [post(port, chat(f"from {port}", max_tokens=2), CHAT).body for port in ports]
        assert [
            post(port, chat(f"from {port}", max_tokens=2), CHAT).body for port in ports[::-1]
        ] == bodies[::-1]
        with ThreadPoolExecutor(8) as several:
            chats = [(ports[number % 2], chat(f"{number}", max_tokens=2)) for number in range(40)]
            assert {
                answer.status
                for answer in several.map(
                    lambda port_and_chat: post(port_and_chat[0], port_and_chat[1], CHAT), chats
                )
            } == {200}
        for port in ports:
            assert (
                post(port, chat(f"from {ports[port == ports[0]]}", max_tokens=2), CHAT).body
                in bodies
            )
        assert len(journal_of(upstream)) == count_before + 42
    assert len(exchanges_of(file)) == 42


@pytest.mark.parametrize("worker", WORKERS)
def test_every_worker_class_records_and_replays_responses_of_the_target(
    tmp_path: Path, upstream: RunningServer, worker: str
) -> None:
    file = tmp_path / "r"
    env = {"SIM_REPLAY": str(file), "SIM_REPLAY_MISS": "record", "SIM_TARGET": upstream.url}
    with served_by(worker, tmp_path, **env) as server:
        for stream in (False, True):
            first = post(server.port, chat(worker, stream=stream), CHAT)
            assert first.status == 200
            assert post(server.port, chat(worker, stream=stream), CHAT).body == first.body
        assert report(server)["equal"] == 2
    assert len(exchanges_of(file)) == 2


def test_recorder_appends_to_a_truncated_recording(tmp_path: Path, upstream: RunningServer) -> None:
    file = written(
        tmp_path / "r", [exchange(chat("known"), (0, b"1"))], tail=b'{"at_s": 0.1, "requ'
    )
    content_before = Path(file).read_bytes()
    with running_server(*FLAGS, "--replay", file, "--target", upstream.url) as server:
        assert post(server.port, chat("known"), CHAT).body == b"1"
        body = post(server.port, chat("new", max_tokens=1), CHAT).body
        assert post(server.port, chat("new", max_tokens=1), CHAT).body == body
    after = Path(file).read_bytes()
    assert after.startswith(content_before + b"\n"), (
        "nothing is taken away, and the next line is a line"
    )
    [new] = after.removeprefix(content_before + b"\n").splitlines(keepends=True)
    assert bytes_of(read_exchange(new).answer.chunks[0].data) == body


def test_silent_target_does_not_delay_shutdown_after_a_disconnect(
    tmp_path: Path,
) -> None:
    with saying() as (silent, left):
        flags = ("--replay", str(tmp_path / "r"), "--target", silent, "--graceful-timeout", "30s")
        with running_server(*FLAGS, *flags) as server:
            with Wire(server.port) as wire:
                wire.post(chat("Hi"), CHAT)
                time.sleep(0.2)
                wire.reset()
            assert left.wait(20)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 15, "the server waited for a client that had left"


def test_invalid_replay_and_target_settings_prevent_startup(
    tmp_path: Path,
) -> None:
    file = str(tmp_path / "r")
    foreign = tmp_path / "foreign"
    foreign.write_text(json.dumps({"mine": 1}))
    for words, line in (
        (("--replay-miss", "record", "--replay", file), "error: setting replay-miss: 'record'"),
        (("--target", "http://x"), "error: setting target: ***"),
        (("--replay", file, "--target", "ftp://x"), "error: setting target: ***"),
        (
            ("--replay", file, "--target", "http://a", "b=http://b", "http://c"),
            "error: target http://c: another",
        ),
        (
            ("--replay", file, "--target", "http://K7@x:nine"),
            "error: target x:nine: Port could not be cast",
        ),
        (
            ("--replay", str(tmp_path / "no" / "r"), "--target", "http://x"),
            "error: setting replay: ",
        ),
        (
            ("--replay", str(foreign), "--target", "http://x"),
            f"error: setting replay: {foreign} was not recorded with",
        ),
    ):
        with pytest.raises(RuntimeError) as failure, running_server(*words):
            pass
        status, _, output = str(failure.value).partition(":\n")
        assert status == "the server exited with status 1"
        assert output.startswith(line) and output.count("\n") == 1, output
        assert "K7" not in output
    assert foreign.read_text() == json.dumps({"mine": 1})
