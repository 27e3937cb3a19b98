"""Scores of hybrid models against the hits that vLLM's KV cache manager had."""

from typing import Any

import pytest

from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from tests.extensions.cache_groups.replay import RECORDED, Replay, read_example
from tests.extensions.kv_index.engines import ingest

EXAMPLES = sorted(path.stem for path in RECORDED.glob("*.json"))


def score(index: Index, operation: dict[str, Any]) -> int:
    """Returns the tokens that the index finds for a prompt, without its last one."""
    tokens: list[int] = []
    for first, count in operation["prompt"]:
        tokens += range(first, first + count)
    scores = index.score("m", tokens[:-1], salt=operation.get("salt"))
    return scores[0].matched * index.block_size if scores else 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_scores_equal_the_cache_hits_of_vllm(name: str) -> None:
    example = read_example(name)
    replay = Replay(example)
    index = Index(MemoryBackend(), block_size=example["model"]["block_size"])

    for number, operation in enumerate(example["operations"]):
        expected = operation["result"].get("hit")
        if expected is not None:
            assert score(index, operation) == expected, f"operation {number}"
        replay.apply(operation)
        ingest(index, "a", *replay.take_events())

    assert not index.metrics.skipped_events
