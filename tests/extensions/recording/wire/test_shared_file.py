"""A shared recording survives locks, rotation, a full disk and kill -9."""

import fcntl
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.extensions.recording.exchange import bytes_of, line_of, read_exchange
from tests.extensions.recording.recordings import (
    CHAT,
    HEADER,
    chat,
    exchange,
    exchanges_of,
    recording_proxy,
    written,
)
from tests.hostile.raw_client import get, post, wait_for_value, wait_until
from tests.hostile.waits import wait_for_log
from tests.http_server import Handler, serving
from tests.other_workers import served_by
from tests.running_server import RunningServer, running_server

FLAGS = ("--force-dummy-tokenizer", "--model", "m", "--replay-miss", "record")
KNOWN = exchange(chat("known"), (0, b"known"))


class Target:
    """A real upstream that answers each chat with its last message, and counts what it is asked."""

    def __init__(self) -> None:
        self.request_counts: Counter[str] = Counter()
        target = self

        class Answering(Handler):
            def do_POST(self) -> None:
                text = json.loads(self.body())["messages"][-1]["content"]
                target.request_counts[text] += 1
                self.reply(
                    200, json.dumps({"echo": text}).encode(), Content_Type="application/json"
                )

        self.handler = Answering


@pytest.fixture
def target() -> Target:
    return Target()


@contextmanager
def recording_server(target: Target, file: Path) -> Iterator[RunningServer]:
    with (
        serving(target.handler) as port,
        running_server(
            *FLAGS, "--replay", str(file), "--target", f"http://127.0.0.1:{port}"
        ) as server,
    ):
        yield server


def say(server: RunningServer, text: str) -> str:
    answer = post(server.port, chat(text), CHAT)
    assert answer.status == 200, answer.body
    echo: str = answer.json()["echo"]
    return echo


def report(server: RunningServer) -> dict[str, Any]:
    report_body: dict[str, Any] = get(server.port, "/admin/replay").json()
    return report_body


def count_recorded(server: RunningServer) -> int:
    recorded: int = report(server)["recorded"]
    return recorded


def count_exchanges(file: Path) -> int:
    return len(exchanges_of(file))


def questions_of(file: Path) -> list[str]:
    """The last message of each recorded chat. Every line has to be an exchange."""
    return [_question(line) for line in file.read_bytes().splitlines()[1:]]


def whole_questions_of(file: Path) -> list[str]:
    """The same, of a file that has lines that were cut off."""
    questions = []
    for line in file.read_bytes().splitlines()[1:]:
        try:
            questions.append(_question(line))
        except ValueError:
            continue
    return questions


def _question(line: bytes) -> str:
    question: str = json.loads(bytes_of(read_exchange(line).request.body))["messages"][-1][
        "content"
    ]
    return question


def test_partial_line_of_a_recording_is_skipped_with_one_warning(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    half = line_of(KNOWN)[:100]
    written(file, [KNOWN], half)
    with recording_server(target, file) as server:
        assert post(server.port, chat("known"), CHAT).body == b"known"
        assert [say(server, "new"), say(server, "other"), say(server, "new")] == [
            "new",
            "other",
            "new",
        ]
        assert target.request_counts == {"new": 1, "other": 1}
        assert server.log().count(f"{file}: line 3") == 1
    with recording_server(target, file) as server:
        assert post(server.port, chat("known"), CHAT).body == b"known"
        assert [say(server, "new"), say(server, "last")] == ["new", "last"]
        assert target.request_counts == {"new": 1, "other": 1, "last": 1}
        assert server.log().count(f"{file}: line 3") == 1
    assert whole_questions_of(file) == ["known", "new", "other", "last"]
    assert file.read_bytes().splitlines()[2] == half


def test_last_line_that_lacks_a_newline_is_replayed_and_kept(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    written(file, [], line_of(KNOWN).rstrip(b"\n"))
    with recording_server(target, file) as server:
        assert post(server.port, chat("known"), CHAT).body == b"known"
        say(server, "new")
    assert questions_of(file) == ["known", "new"]
    assert target.request_counts == {"new": 1}


@pytest.mark.parametrize("rotation", ["rename", "replace", "truncate", "delete"])
def test_file_rotated_during_recording_loses_no_exchange(
    tmp_path: Path, target: Target, rotation: str
) -> None:
    file = tmp_path / "r"
    rotated = tmp_path / "r.1"
    with recording_server(target, file) as server:
        say(server, "one")
        wait_for_value(count_recorded, server, equals=1)
        if rotation == "rename":
            file.rename(rotated)
        elif rotation == "replace":
            os.link(file, rotated)
            (tmp_path / "empty").write_bytes(HEADER)
            (tmp_path / "empty").rename(file)
        elif rotation == "truncate":
            rotated.write_bytes(file.read_bytes())
            os.truncate(file, 0)
        else:
            rotated.write_bytes(file.read_bytes())
            file.unlink()
        assert say(server, "one") == "one"
        assert [say(server, "two"), say(server, "two"), say(server, "one")] == ["two", "two", "one"]
        assert target.request_counts["two"] == 1
        assert get(server.port, "/admin/replay").status == 200
    assert questions_of(rotated) == ["one"]
    assert sorted(questions_of(file)) == ["one", "two"], "the new file answers both"


def test_lock_held_by_another_process_delays_no_response(tmp_path: Path, target: Target) -> None:
    file = tmp_path / "r"
    with recording_server(target, file) as server:
        say(server, "before")
        wait_for_value(count_recorded, server, equals=1)
        with file.open("rb") as other, ThreadPoolExecutor(8) as clients:
            fcntl.flock(other, fcntl.LOCK_EX)
            answers = clients.map(lambda number: say(server, f"locked {number}"), range(8))
            assert get(server.port, "/health").status == 200
            assert [*answers] == [f"locked {number}" for number in range(8)]
            assert say(server, "before") == "before"
            assert report(server)["unwritten"] == 8
            wait_for_log(server, "another process has locked the file")
        wait_for_value(count_recorded, server, equals=9)
        assert say(server, "locked 3") == "locked 3"
        assert (target.request_counts["before"], target.request_counts["locked 3"]) == (1, 1)
        assert report(server)["not_kept"] == 0
        assert server.log().count("another process has locked the file") == 1
    assert sorted(questions_of(file)) == ["before", *(f"locked {number}" for number in range(8))]


def test_server_starts_and_stops_while_another_process_holds_the_lock(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    written(file, [KNOWN])
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with recording_server(target, file) as server:
            assert post(server.port, chat("known"), CHAT).body == b"known"
            assert say(server, "lost") == "lost"
            assert server.stop() == 0
            assert (
                "not kept: POST /v1/chat/completions: another process has locked the file"
                in server.log()
            )
    assert questions_of(file) == ["known"]


def test_servers_that_share_a_recording_forward_equal_requests_once(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    with (
        recording_server(target, file) as first,
        recording_server(target, file) as second,
        ThreadPoolExecutor(8) as clients,
    ):
        servers = (first, second)
        for text in ("a", "b"):
            for server in (*servers, *servers):
                assert say(server, text) == text
                wait_until(
                    lambda: (
                        sum(report(server)["recorded"] for server in servers)
                        >= target.request_counts.total()
                    )
                )
        assert target.request_counts == {"a": 1, "b": 1}
        wide = [
            clients.submit(say, servers[number % 2], f"{number} " * 3000) for number in range(40)
        ]
        assert {future.result().split()[0] for future in wide} == {
            str(number) for number in range(40)
        }
    assert len(questions_of(file)) == 42


def test_killing_a_recording_server_loses_no_written_line(tmp_path: Path, target: Target) -> None:
    file = tmp_path / "r"
    with serving(target.handler) as port:
        flags = (*FLAGS, "--replay", str(file), "--target", f"http://127.0.0.1:{port}")
        with running_server(*flags) as survivor:
            with running_server(*flags) as victim, ThreadPoolExecutor(4) as clients:
                uploads = [
                    clients.submit(post, victim.port, chat(f"{number} " + "x" * 500_000), CHAT)
                    for number in range(12)
                ]
                wait_until(lambda: report(victim)["recorded"] >= 3)
                confirmed = whole_questions_of(file)
                os.killpg(victim.process.pid, signal.SIGKILL)
                victim.process.wait()
                for future in uploads:
                    future.exception()
            assert say(survivor, "after") == "after"
            wait_for_value(count_recorded, survivor, equals=1)
        written_questions = whole_questions_of(file)
        assert not Counter(confirmed) - Counter(written_questions), "a whole line is gone"
        assert written_questions[-1] == "after"
        lines = file.read_bytes().splitlines()[1:]
        assert len(lines) - len(written_questions) <= 1, (
            "only the line that was being written may be cut"
        )
        with running_server(*flags) as server:
            assert report(server)["exchanges"] == len(written_questions)
            assert say(server, "after") == "after"
        assert target.request_counts["after"] == 1


def test_full_disk_does_not_prevent_the_response_to_the_client(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    written(file, [exchange(chat("x" * 300_000), (0, b"1"))])  # longer than the log of the server
    with recording_server(target, file) as server:
        say(server, "before")
        wait_for_value(count_recorded, server, equals=1)
        workers = [int(pid) for pid in children_of(server.process.pid)]
        for pid in workers:
            resource.prlimit(
                pid, resource.RLIMIT_FSIZE, (file.stat().st_size + 50, resource.RLIM_INFINITY)
            )
        assert say(server, "no room") == "no room"
        wait_until(lambda: report(server)["not_kept"] == 1)
        assert server.log().count("not kept: POST /v1/chat/completions: ") == 1
        for pid in workers:
            resource.prlimit(
                pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
        assert say(server, "after") == "after"
    assert questions_of(file)[1:] == ["before", "after"]


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_recording_proxy_continues_while_its_file_is_locked_or_rotated(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    rotated = tmp_path / "r.1"
    with (
        serving(target.handler) as port,
        recording_proxy(f"http://127.0.0.1:{port}", file) as proxy,
    ):
        say(proxy, "one")
        wait_for_value(count_exchanges, file, equals=1)
        with file.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert say(proxy, "two") == "two"
            wait_for_log(proxy, "another process has locked the file")
            assert say(proxy, "three") == "three"
        wait_for_value(count_exchanges, file, equals=3)
        file.rename(rotated)
        assert say(proxy, "four") == "four"
    assert questions_of(rotated) == ["one", "two", "three"]
    assert questions_of(file) == ["four"]


def test_sync_worker_class_records_the_last_exchange_before_shutdown(
    tmp_path: Path, target: Target
) -> None:
    file = tmp_path / "r"
    with serving(target.handler) as port:
        env = {
            "SIM_REPLAY": str(file),
            "SIM_REPLAY_MISS": "record",
            "SIM_TARGET": f"http://127.0.0.1:{port}",
        }
        with served_by("sync", tmp_path, **env) as server:
            assert say(server, "only") == "only"
    assert questions_of(file) == ["only"]
