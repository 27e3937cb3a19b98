"""Real agents go round their loop against the script of docs/scripts.md, and again on its recording."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.serving.recording.exchange import Exchange, bytes_of
from benchmarks import agents
from tests.needs import CLIENTS_PYTHON
from tests.recording.recordings import exchanges_of, recording_proxy
from tests.running_server import ROOT, RunningServer, running_server

SCRIPT = ROOT / "examples" / "scripts" / "weather.yaml"
TOWNS = ("Rome",)


def told(python: str, client: str, server: RunningServer) -> list[str]:
    """What `client` hears, whole and streamed, in each town."""
    done = subprocess.run(
        [python, agents.__file__, client, server.url, "tiny", *TOWNS],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    heard: list[str] = json.loads(done.stdout)
    return heard


def said(exchange: Exchange) -> tuple[object, ...]:
    """An answer without its moments, and without what the server says of this very moment."""
    answer = exchange.answer
    headers = sorted((name.lower(), value) for name, value in answer.headers)
    return (
        answer.status,
        [each for each in headers if each[0] not in ("date", "server")],
        b"".join(bytes_of(chunk.data) for chunk in answer.chunks),
        answer.is_broken,
    )


@pytest.mark.parametrize(
    ("client", "python"),
    [
        ("openai", sys.executable),
        pytest.param("pydantic-ai", str(CLIENTS_PYTHON), marks=pytest.mark.clients),
    ],
)
def test_the_loop_of_an_agent_is_replayed_byte_by_byte(tmp_path: Path, client: str, python: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with (
        running_server("--model=tiny", "--script", str(SCRIPT)) as live,
        recording_proxy(live, first) as proxy,
    ):
        heard = told(python, client, proxy)
    assert heard == [f"The weather: sun in {town}." for town in TOWNS for _ in range(2)]
    flags = ("--model=other", "--replay", str(first), "--replay-miss", "not-found")
    with running_server(*flags) as other, recording_proxy(other, second) as proxy:
        assert told(python, client, proxy) == heard
    recorded, replayed = exchanges_of(first), exchanges_of(second)
    assert len(recorded) == 4 * len(TOWNS), "each loop asks twice"
    assert [one.request.body for one in replayed] == [one.request.body for one in recorded]
    assert [*map(said, replayed)] == [*map(said, recorded)]
