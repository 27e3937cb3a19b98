"""Where KV events are published, as the server tells it."""

from __future__ import annotations

from tests.surface.conftest import served


def test_a_rank_that_is_played_alone_tells_of_itself() -> None:
    alone = ("--data-parallel-size", "4", "--data-parallel-rank", "2")
    with served(*alone, "--enable-kvcache", "--zmq-endpoint", "tcp://127.0.0.1:5600") as client:
        sources = client.get("/kv_event_sources").json()
        assert {rank: source["endpoint"] for rank, source in sources.items()} == {"2": "tcp://127.0.0.1:5602"}
