"""Routed prompts count as cached until an event confirms them, or their lifetime ends."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from app.core.engine.kvcache.events import AllBlocksCleared
from app.extensions.kv_index.backend import Backend
from app.extensions.kv_index.decoding import PodBatch
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.speculation import PAUSE_EVERY, Speculation, common_prefix
from tests.extensions.kv_index.engines import PROMPT, block, ingest, removed, stored

BLOCKS = len(PROMPT) // 4
LIFETIME_S = 2.0


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def index(backend: Backend, clock: list[float]) -> Iterator[Index]:
    speculation = Speculation(LIFETIME_S, now=partial(clock.__getitem__, 0))
    yield Index(backend, block_size=4, speculation=speculation)


def route(index: Index, pod: str, tokens: list[int] = PROMPT, rank: int = 0) -> None:
    index.add_routed("m", index.block_keys("m", tokens), pod=pod, rank=rank)


def matched(index: Index, tokens: list[int] = PROMPT, *pods: str) -> dict[str, int]:
    return {score.pod: score.matched for score in index.score("m", tokens, pods=pods)}


def test_routed_prompt_is_scored_until_its_lifetime_ends(index: Index, clock: list[float]) -> None:
    assert matched(index) == {}
    route(index, "a")
    [score] = index.score("m", PROMPT)
    assert (score.pod, score.rank, score.score) == ("a", 0, BLOCKS)
    assert (score.matched, score.match_ratio) == (BLOCKS, 1.0)
    assert score.tiers == {"speculative": BLOCKS}
    clock[0] += LIFETIME_S - 0.01
    assert matched(index) == {"a": BLOCKS}
    clock[0] += 0.01
    assert matched(index) == {}
    assert len(index.speculation) == 0
    assert index.speculation.size_bytes == 0


def test_score_of_a_routed_prompt_covers_only_the_common_prefix(index: Index) -> None:
    route(index, "a")
    other = [*PROMPT[:12], 1, 2, 3, 4]
    assert matched(index, other) == {"a": 3}
    assert matched(index, PROMPT[:8]) == {"a": 2}
    assert matched(index, [7, *PROMPT[1:]]) == {}
    assert index.score("another model", PROMPT) == []


def test_speculative_blocks_can_change_the_ranking_of_pods(index: Index) -> None:
    ingest(index, "a", block(0), block(1))
    ingest(index, "b", block(0), block(1), block(2))
    assert list(matched(index)) == ["b", "a"]
    route(index, "a")
    best, second = index.score("m", PROMPT)
    assert (best.pod, best.score, second.pod) == ("a", BLOCKS, "b")
    assert best.tiers == {"gpu": 2, "speculative": BLOCKS - 2}


def test_stored_event_confirms_a_routed_prompt(index: Index, clock: list[float]) -> None:
    route(index, "a")
    ingest(index, "a", stored(range(1, BLOCKS + 1), PROMPT))
    assert len(index.speculation) == 0
    clock[0] += 2 * LIFETIME_S
    assert matched(index) == {"a": BLOCKS}
    ingest(index, "a", removed([2]))
    assert matched(index) == {"a": 1}


def test_incomplete_or_foreign_event_does_not_confirm_a_routed_prompt(
    index: Index,
) -> None:
    route(index, "a")
    ingest(index, "a", block(0))
    ingest(index, "b", stored(range(1, BLOCKS + 1), PROMPT))
    ingest(index, "a", stored(range(1, BLOCKS + 1), PROMPT), rank=1)
    assert len(index.speculation) == 1


def test_routed_prompt_is_not_tracked_if_the_pod_already_has_it_cached(index: Index) -> None:
    """No event will come for blocks that are cached, and the pod may remove them."""
    ingest(index, "a", stored(range(1, BLOCKS + 1), PROMPT))
    route(index, "a")
    assert len(index.speculation) == 0
    route(index, "a", rank=1)
    assert len(index.speculation) == 1


def clear_by_event(index: Index) -> None:
    ingest(index, "a", AllBlocksCleared())


def remove_pod(index: Index) -> None:
    index.clear("a")


def restart_engine(index: Index) -> None:
    engine = IndexedEngine("a", "m", 0)
    index.ingest(engine, PodBatch(9.0, 0, ()), sequence=1, restart=True)


@pytest.mark.parametrize("lose_cache", [clear_by_event, remove_pod, restart_engine])
def test_pod_that_loses_its_cache_loses_its_routed_prompts(
    index: Index, lose_cache: Callable[[Index], None]
) -> None:
    ingest(index, "a", stored([77], [9, 9, 9, 9]))
    route(index, "a")
    route(index, "b")
    lose_cache(index)
    assert matched(index) == {"b": BLOCKS}


def test_pods_outside_the_pod_filter_have_no_scores_for_routed_prompts(index: Index) -> None:
    route(index, "a")
    route(index, "b")
    assert matched(index, PROMPT, "b", "c") == {"b": BLOCKS}


def test_prompt_that_is_routed_again_restarts_its_lifetime(
    index: Index, clock: list[float]
) -> None:
    route(index, "a")
    clock[0] += LIFETIME_S - 0.5
    route(index, "a")
    clock[0] += LIFETIME_S - 0.5
    assert matched(index) == {"a": BLOCKS}


def test_oldest_routed_prompts_are_dropped_above_the_maximum_number() -> None:
    speculation = Speculation(LIFETIME_S, limit_bytes=3000)
    for number in range(1, 9):
        speculation.add("a", 0, [number, number + 100])
    assert 0 < speculation.size_bytes <= 3000
    assert len(speculation) == 4
    assert speculation.complete([], [1, 101], ()) == []
    assert len(speculation.complete([], [8, 108], ())) == 1


def test_routed_prompts_are_not_tracked_if_no_lifetime_is_set() -> None:
    speculation = Speculation(0.0)
    speculation.add("a", 0, [1, 2])
    assert len(speculation) == 0


@pytest.mark.parametrize("length", range(6))
def test_common_prefix_length_is_the_number_of_equal_leading_block_keys(length: int) -> None:
    keys = list(range(5))
    other = [*keys[:length], *range(90, 95 - length)]
    assert common_prefix(keys, other) == min(length, 5)


def test_other_greenlets_run_while_many_similar_prompts_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speculation = Speculation(LIFETIME_S, now=float)
    for number in range(PAUSE_EVERY + 1):
        speculation.add("pod", 0, [1, 2 + number])
    pauses: list[int] = []

    def pause() -> None:
        pauses.append(len(speculation))
        speculation.drop("pod")

    monkeypatch.setattr("app.extensions.kv_index.speculation.pause_if_possible", pause)
    [score] = speculation.complete([], [1, 2], ())
    assert score.matched == 2
    assert pauses == [PAUSE_EVERY + 1]
    assert speculation.complete([], [1, 2], ()) == []
