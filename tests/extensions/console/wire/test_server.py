"""The console of a real server: its stream, its limits, its load generator, and its end."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from app.extensions.console.feed import MAX_CONSOLES
from app.extensions.console.frames import FIGURES
from tests.extensions.console.conftest import until
from tests.extensions.llm.remote.served import new_peer, served
from tests.hostile.raw_client import metric
from tests.running_server import RunningServer, running_gunicorn, running_server

KEY = {"X-Admin-Key": "secret"}
LIMIT_S = 20


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = ("--profile", "qwen3-14b-h100", "--max-num-seqs", "16", "--max-model-len", "4096")
    with running_server("--console", "--admin-key", "secret", *flags) as running:
        yield running


def complete(server: RunningServer, **body: Any) -> requests.Response:
    return requests.post(
        f"{server.url}/v1/completions", json={"prompt": "Hello there", **body}, timeout=LIMIT_S
    )


def look(server: RunningServer) -> requests.Response:
    return requests.get(
        f"{server.url}/admin/console/stream", headers=KEY, stream=True, timeout=LIMIT_S
    )


def events(answer: requests.Response) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in answer.iter_lines(chunk_size=None):
        if line.startswith(b"event: "):
            kind = line.removeprefix(b"event: ").decode()
        elif line.startswith(b"data: "):
            yield kind, json.loads(line.removeprefix(b"data: "))


def test_console_stream_starts_with_a_snapshot(
    server: RunningServer,
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with look(server) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        stream = events(answer)
        kind, picture = next(stream)
        assert f"console: {server.url}/console" in server.log()
        assert kind == "picture" and picture["server"]["places"] == 16
        completion = requests.post(
            f"{server.url}/v1/completions",
            json={"prompt": "Hello there", "max_tokens": 40, "ignore_eos": True},
            headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
            timeout=LIMIT_S,
        )
        assert completion.status_code == 200
        frames = []
        for _, frame in stream:
            frames.append(frame)
            if any(row[3] == 40 for row in frame.get("ended", ())):
                break
        new = [row for frame in frames for row in frame.get("new", ())]
        number = new[-1][0]
        assert (
            new[-1][1].split("-")[-1] in completion.json()["id"]
            or completion.json()["id"] in new[-1][1]
        )
        details = requests.get(
            f"{server.url}/admin/console/requests/{number}", headers=KEY, timeout=LIMIT_S
        ).json()
        assert details["trace_id"] == trace
        assert details["prompt"].endswith("Hello there")
        figures = dict(zip(FIGURES, frames[-1]["figures"], strict=True))
        assert figures["generated"] == metric(server.port, "vllm:generation_tokens_total")
        assert figures["prompt"] == metric(server.port, "vllm:prompt_tokens_total")


def test_consoles_above_the_limit_are_rejected_with_a_one_line_error(server: RunningServer) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(look, [server] * 50))
    try:
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200] * MAX_CONSOLES + [503] * (50 - MAX_CONSOLES)
        message = next(answer for answer in answers if answer.status_code == 503).json()["error"][
            "message"
        ]
        assert "There are already" in message and "\n" not in message
        completion = complete(server, max_tokens=3)
        assert completion.status_code == 200
    finally:
        for answer in answers:
            answer.close()

    def has_room() -> bool:
        with look(server) as answer:
            return answer.status_code == 200

    until(has_room, "places of consoles that have gone stay taken")


def test_two_consoles_receive_setting_changes_in_the_same_order(
    server: RunningServer,
) -> None:
    def turn(value: str) -> dict[str, Any]:
        knobs = {"failure-injection-rate": value}
        answer = requests.post(
            f"{server.url}/admin/config", json=knobs, headers=KEY, timeout=LIMIT_S
        )
        assert answer.status_code == 200
        changed: dict[str, Any] = answer.json()
        return changed

    with look(server) as first_answer, look(server) as second_answer, ThreadPoolExecutor(2) as pool:
        streams = [events(first_answer), events(second_answer)]
        assert [next(stream)[0] for stream in streams] == ["picture", "picture"]
        rates = [settings["failure-injection-rate"] for settings in pool.map(turn, ["1", "2"])]
        assert rates == [1, 2]
        seen = []
        for stream in streams:
            marks: list[str] = []
            while len(marks) < 2:
                marks += [
                    mark[2] for mark in next(stream)[1].get("marks", ()) if mark[1] == "fault"
                ]
            seen.append(marks)
        assert seen[0] == seen[1], "the order of the turns is one for all"
        assert sorted(seen[0]) == ["failure-injection-rate: 1", "failure-injection-rate: 2"]
        current = requests.get(f"{server.url}/admin/config", headers=KEY, timeout=LIMIT_S).json()
        assert seen[0][-1] == f"failure-injection-rate: {current['failure-injection-rate']}", (
            "the last turn holds"
        )
        assert turn("0")["failure-injection-rate"] == 0


def test_browser_that_never_reads_does_not_block_other_clients(server: RunningServer) -> None:
    with socket.socket() as silent_client:
        silent_client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent_client.connect(("127.0.0.1", server.port))
        silent_client.sendall(
            b"GET /admin/console/stream HTTP/1.1\r\nHost: localhost\r\nX-Admin-Key: secret\r\n\r\n"
        )
        with look(server) as answer:
            stream = events(answer)
            assert next(stream)[0] == "picture"
            completion = complete(server, max_tokens=40)
            assert completion.status_code == 200
            frames = [
                frame
                for _, (kind, frame) in zip(range(12), stream, strict=False)
                if kind == "frame"
            ]
            assert any(frame.get("ended") for frame in frames)


def test_load_generator_sends_the_planned_load_and_stops_on_request(
    server: RunningServer,
) -> None:
    url = f"{server.url}/admin/console/load"
    requests_before = metric(server.port, "vllm:request_success_total")
    plan = {
        "rate": 50,
        "seconds": 1,
        "prompt_tokens": 60,
        "output_tokens": 5,
        "groups": 2,
        "shared": 30,
    }
    assert requests.post(url, json=plan, headers=KEY, timeout=LIMIT_S).json()["active"]
    with look(server) as answer:
        load = next(
            frame["load"]
            for _, frame in events(answer)
            if frame.get("load", {"active": True})["active"] is False
        )
    assert load["sent"] == load["answered"] > 20 and load["failed"] == 0
    assert metric(server.port, "vllm:request_success_total") - requests_before == load["sent"]
    requests.post(
        url, json={"rate": 20, "seconds": 600, "output_tokens": 2000}, headers=KEY, timeout=LIMIT_S
    )
    assert requests.delete(url, headers=KEY, timeout=LIMIT_S).json()["active"] is False

    def is_idle() -> bool:
        return not metric(server.port, "vllm:num_requests_running")

    until(is_idle, "requests run on")


def test_open_consoles_do_not_delay_shutdown() -> None:
    with (
        running_server("--console", "--graceful-timeout", "15s") as server,
        requests.get(f"{server.url}/admin/console/stream", stream=True, timeout=LIMIT_S) as answer,
    ):
        next(events(answer))
        begun_s = time.monotonic()
        server.stop()
        assert time.monotonic() - begun_s < 10


def test_console_of_one_rank_lists_all_ranks() -> None:
    env = {"SIM_CONSOLE": "true", "SIM_DATA_PARALLEL_SIZE": "2"}
    with running_gunicorn(env=env, ports=2) as server:
        second = f"http://127.0.0.1:{server.port + 1}"
        with requests.get(f"{second}/admin/console/stream", stream=True, timeout=LIMIT_S) as answer:
            _, picture = next(events(answer))
        assert picture["server"]["rank"] == 1
        assert picture["server"]["ranks"] == {"0": server.port, "1": server.port + 1}
        figures = requests.get(f"{second}/admin/console/figures?ranks=all", timeout=LIMIT_S).json()
        assert set(figures) == {"0", "1"} and figures["0"]["state"] == "serving"


def test_console_shows_the_requests_of_a_remote_engine(tmp_path: Path) -> None:
    peer = new_peer(tmp_path / "model")
    peer.says("The rain in Spain stays mainly in the plain.", pace_s=0.1)
    with served(peer, console="true") as server:
        with requests.get(
            f"{server.url}/admin/console/stream", stream=True, timeout=LIMIT_S
        ) as answer:
            stream = events(answer)
            _, picture = next(stream)
            assert picture["server"]["shared_steps"] is False
            token_count = complete(server, model="tiny").json()["usage"]["completion_tokens"]
            frames = []
            for _, frame in stream:
                frames.append(frame)
                if frame.get("ended"):
                    break
        number = next(row[0] for frame in frames for row in frame.get("new", ()))
        token_rows = [tuple(frame["tokens"]) for frame in frames if frame.get("tokens")]
        assert len(token_rows) > 1 and all(row[0] == number for row in token_rows)
        assert frames[-1]["ended"][0][1:4:2] == ["stop", token_count]
        assert (
            requests.post(
                f"{server.url}/admin/console/pause?mode=keep", timeout=LIMIT_S
            ).status_code
            == 200
        )
        assert (
            requests.post(f"{server.url}/admin/console/resume", timeout=LIMIT_S).status_code == 200
        )
