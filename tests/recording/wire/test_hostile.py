"""Servers that answer strangely, recorded and replayed: what came passes, or the client is told why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.raw_client import Wire, post
from tests.recording.recordings import CHAT, chat, exchange, written
from tests.running_server import running_server


def test_a_recording_of_megabytes_in_one_answer_is_replayed_to_the_byte(tmp_path: Path) -> None:
    content = b'"\n' * (6 << 20)
    huge = exchange(chat("Hi"), (0, content), headers=[("content-type", "text/plain")])
    path = written(tmp_path / "r", [huge, exchange(chat("parts"), *[(0.0, content[: 1 << 20])] * 4)])
    with running_server("--force-dummy-tokenizer", "--replay", path) as server:
        assert post(server.port, chat("Hi"), CHAT).body == content
        assert post(server.port, chat("parts"), CHAT).body == content[: 4 << 20]


@pytest.mark.parametrize("pieces", [[(0.0, b"x" * (6 << 20))], [(0.0, b"x" * (3 << 20))] * 2])
def test_a_client_that_takes_no_bytes_of_a_replay_is_cut_off(
    tmp_path: Path, pieces: list[tuple[float, bytes]]
) -> None:
    path = written(tmp_path / "r", [exchange(chat("Hi"), *pieces)])
    flags = ("--force-dummy-tokenizer", "--write-timeout", "0.3s", "--graceful-timeout", "40s")
    with running_server(*flags, "--replay", path) as server, Wire(server.port, receive_buffer=4096) as wire:
        wire.post(chat("Hi"), CHAT)
        wire.begin().close()
        assert server.stop(timeout_s=20) == 0, "it waited for who takes nothing"
