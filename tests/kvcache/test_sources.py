"""Where KV events are published, as the server tells it."""

from __future__ import annotations

from uuid import UUID

import requests

from tests.running_server import running_gunicorn
from tests.surface.conftest import served


def test_a_rank_that_is_played_alone_tells_of_itself() -> None:
    alone = ("--data-parallel-size", "4", "--data-parallel-rank", "2")
    with served(*alone, "--enable-kvcache", "--zmq-endpoint", "tcp://127.0.0.1:5600") as client:
        sources = client.get("/kv_event_sources").json()
        assert {rank: source["endpoint"] for rank, source in sources.items()} == {"2": "tcp://127.0.0.1:5602"}


def test_every_rank_tells_the_same_engine_ids_and_goes_on_telling_them() -> None:
    with running_gunicorn(env={"SIM_DATA_PARALLEL_SIZE": "2"}, ports=2) as server:
        told = [
            requests.get(f"http://127.0.0.1:{server.port + rank}/query", timeout=20).json()
            for rank in (0, 1, 0)
        ]
    assert told[0] == told[1] == told[2]
    engines = [UUID(told[0][rank]["engine_id"]) for rank in ("0", "1")]
    assert list(told[0]) == ["0", "1"] and len(set(engines)) == 2


def test_a_rank_that_is_played_alone_names_the_engines_of_all() -> None:
    with served("--data-parallel-size", "3", "--data-parallel-rank", "2") as client:
        assert list(client.get("/query").json()) == ["0", "1", "2"]
