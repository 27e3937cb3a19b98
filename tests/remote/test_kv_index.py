"""An index of KV blocks beside an engine in a process of its own hears of its blocks over its connection."""

from __future__ import annotations

from pathlib import Path

from app.kvcache.events import BlockStored, EventBatch, encoder
from tests.hostile.wire import post, wait_until
from tests.remote.served import new_peer, served

TOKENS = list(range(1, 33))


def test_the_engines_blocks_are_found(tmp_path: Path) -> None:
    peer = new_peer(tmp_path / "model")
    stored = BlockStored([11, 12], None, TOKENS, 16, None)
    (peer.folder / "blocks").write_bytes(encoder("map")(EventBatch(1.0, [stored])))
    with served(peer, kv_index="true", kv_index_block_size="16", zmq_endpoint="") as server:
        asked = {"tokens": [*TOKENS, 99], "model": "tiny"}

        def scores() -> dict[str, float]:
            answer = post(server.port, asked, "/score_tokens")
            assert answer.status == 200, answer.body
            return {pod: score["matched"] for pod, score in answer.json()["scores"].items()}

        assert scores() == {}
        assert post(server.port, {"prompt": "Hello"}).status == 200
        wait_until(lambda: scores() == {"pod": 2})
