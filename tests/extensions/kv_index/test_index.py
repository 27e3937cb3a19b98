"""Events in, scores out, on every backend; longest prefixes, and events together as alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.events import AllBlocksCleared, BlockHash, KVEvent
from app.core.engine.kvcache.hashing import Placeholder
from app.extensions.kv_index.backend import Backend, Lookup
from app.extensions.kv_index.copies import set_bits
from app.extensions.kv_index.holders import Holders
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.ingest import EventParser
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.scorer import score_prefixes
from tests.extensions.kv_index.engines import (
    block,
    ingest,
    matched,
    offloaded,
    removed,
    source,
    stored,
)

PROMPT = list(range(100, 120))
"""Five blocks of four tokens."""
FULL: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
WINDOW: dict[str, Any] = {
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 8,
}
WINDOWLESS: dict[str, Any] = {"kv_cache_spec_kind": "sliding_window"}
LINEAR: dict[str, Any] = {"group_idx": 2, "kv_cache_spec_kind": "mamba"}
TIERS = ["gpu", "cpu", "disk"]
EXACT = {"gpu": 1.0, "cpu": 0.75, "disk": 0.5}


def make_index(backend: Backend, **settings: Any) -> Index:
    return Index(backend, **({"block_size": 4} | settings))


@pytest.fixture
def index(backend: Backend) -> Index:
    return make_index(backend)


def losses(index: Index) -> dict[str, int]:
    return dict(index.metrics.skipped_events)


def test_pods_are_scored_by_their_cached_prefix(index: Index) -> None:
    ingest(index, "a", stored([1, 2, 3], PROMPT[:12]))
    ingest(index, "b", stored([1], PROMPT[:4]), stored([3], PROMPT[8:12], 2))
    best, other = index.score("m", PROMPT)
    assert (best.pod, best.score, best.matched, best.match_ratio) == ("a", 3.0, 3, 0.6)
    assert best.tiers == {"gpu": 3}
    assert (other.pod, other.matched) == ("b", 1)
    assert losses(index) == {"unknown_parent": 1}


def test_prompts_without_a_known_block_have_no_scores(index: Index) -> None:
    ingest(index, "a", stored([1], PROMPT[:4]))
    assert index.score("m", PROMPT[:3]) == [] == index.score("m", [1, 2, 3, 4, 5])
    assert index.score("m", []) == [] == index.score("unheard", PROMPT)


def test_scores_can_be_limited_to_selected_pods(index: Index) -> None:
    for pod in ("a", "b", "c"):
        ingest(index, pod, stored([1, 2], PROMPT[:8]))
    assert {score.pod for score in index.score("m", PROMPT, pods=["a", "c", "x"])} == {"a", "c"}
    assert index.score("m", PROMPT, pods=["x"]) == []
    assert len(matched(index, PROMPT)) == 3


def test_each_cached_block_is_scored_with_the_weight_of_its_best_tier(index: Index) -> None:
    ingest(index, "a", stored([1, 2, 3, 4], PROMPT[:16]), offloaded([1, 3, 4]), removed([3, 4]))
    ingest(index, "a", offloaded([4], "NVMe"), removed([4], "CPU"))
    (score,) = index.score("m", PROMPT)
    assert score.tiers == {"gpu": 2, "cpu": 1, "nvme": 1}
    assert score.score == pytest.approx(2 * 1.0 + 0.8 + 0.5)


def test_score_is_the_sum_of_the_tier_weights_of_the_cached_blocks(
    backend: Backend,
) -> None:
    index = make_index(backend, weights={"gpu": 0.2, "cpu": 0.9, "disk": 0.0})
    ingest(
        index,
        "a",
        stored([1, 2, 3], PROMPT[:12]),
        offloaded([1]),
        removed([3]),
        offloaded([3], "disk"),
    )
    (score,) = index.score("m", PROMPT)
    assert score.tiers == {"cpu": 1, "gpu": 1}
    assert (score.score, score.matched) == (pytest.approx(1.1), 2)


def test_blocks_of_one_model_do_not_count_for_another_model(index: Index) -> None:
    ingest(index, "a", stored([1, 2], PROMPT[:8]))
    ingest(index, "b", stored([1], PROMPT[:4]), stored([2], PROMPT[4:8], 1), model="other")
    assert matched(index, PROMPT) == {"a": 2}
    assert matched(index, PROMPT, model="other") == {"b": 2}


def test_ranks_of_a_pod_are_scored_separately(index: Index) -> None:
    ingest(index, "a", stored([1, 2], PROMPT[:8]), rank=0)
    ingest(index, "a", stored([1], PROMPT[:4]), rank=1)
    assert [(s.pod, s.rank, s.matched) for s in index.score("m", PROMPT)] == [
        ("a", 0, 2),
        ("a", 1, 1),
    ]
    ingest(index, "a", AllBlocksCleared(), rank=0)
    assert [(s.rank, s.matched) for s in index.score("m", PROMPT)] == [(1, 1)]


def test_blocks_of_an_adapter_count_only_for_requests_of_that_adapter(index: Index) -> None:
    with_name = {"lora_id": 1, "lora_name": "alice", "extra_keys": [["alice"], ["alice"]]}
    ingest(index, "a", stored([1, 2], PROMPT[:8], **with_name))
    ingest(index, "b", stored([1, 2], PROMPT[:8]))
    assert matched(index, PROMPT) == {"b": 2}
    assert matched(index, PROMPT, lora="alice") == {"a": 2}
    assert matched(index, PROMPT, model="alice") == {"a": 2}
    assert matched(index, PROMPT, lora="bob") == {}
    ingest(index, "c", stored([1, 2], PROMPT[:8], lora_id=7))  # an engine that tells no names
    assert matched(index, PROMPT, lora="7") == {"c": 2}


def test_request_matches_only_blocks_with_the_same_salt_adapter_and_image(index: Index) -> None:
    extra_keys = [["alice", ["img", 2], "salt"], ["alice", ["img", -2]], ["alice"]]
    ingest(index, "a", stored([1, 2, 3], PROMPT[:12], lora_name="alice", extra_keys=extra_keys))
    image = [Placeholder("img", 2, 5)]
    assert matched(index, PROMPT, lora="alice", salt="salt", media=image) == {"a": 3}
    assert matched(index, PROMPT, lora="alice", salt="salt") == {}
    assert matched(index, PROMPT, salt="salt", media=image) == {}
    assert matched(index, PROMPT, lora="alice", media=image) == {}


def test_all_cached_blocks_of_a_long_prompt_with_a_salt_are_matched() -> None:
    index = make_index(MemoryBackend())
    part_blocks = 1024
    tokens = [number % 1000 for number in range(4 * (2 * part_blocks + 3))]
    blocks = 2 * part_blocks + 3
    for first in range(0, blocks, 100):
        hashes = range(first + 1, min(first + 100, blocks) + 1)
        part = tokens[4 * first : 4 * (first + 100)]
        extra_keys = [["salt"] if number == 1 else None for number in hashes]
        ingest(index, "a", stored(hashes, part, first or None, extra_keys=extra_keys))
    for block_count in (part_blocks, part_blocks + 1, 2 * part_blocks, blocks):
        assert matched(index, tokens[: 4 * block_count + 3], salt="salt") == {"a": block_count}


def test_image_changes_all_block_keys_from_its_first_block_on(
    index: Index,
) -> None:
    for pod, image in (("a", "one"), ("b", "two")):
        extra_keys = [None, [[image, 1]], [[image, -3]], None]
        ingest(index, pod, stored([1, 2, 3, 4], PROMPT[:16], extra_keys=extra_keys))
    assert matched(index, PROMPT, media=[Placeholder("one", 5, 4)]) == {"a": 4, "b": 1}
    assert matched(index, PROMPT, media=[Placeholder("two", 5, 4)]) == {"a": 1, "b": 4}
    assert matched(index, PROMPT) == {"a": 1, "b": 1}


def test_events_without_image_offsets_match_requests_with_the_image(
    index: Index,
) -> None:
    ingest(index, "a", stored([1, 2], PROMPT[:8], extra_keys=[["img", "salt"], ["img"]]))
    assert matched(index, PROMPT, media=[Placeholder("img", 0, 8)], salt="salt") == {"a": 2}


def test_cached_prefix_ends_at_the_last_block_that_all_windows_need(
    index: Index,
) -> None:
    ingest(index, "a", stored([1, 2, 3, 4], PROMPT[:16], **FULL))
    ingest(index, "a", stored([1, 2, 3, 4], PROMPT[:16], **WINDOW))
    assert matched(index, PROMPT) == {"a": 4}
    ingest(index, "a", removed([1, 2], group_idx=1))
    assert matched(index, PROMPT) == {"a": 4}
    ingest(index, "a", removed([4], group_idx=1))
    assert matched(index, PROMPT) == {}
    ingest(index, "a", stored([1], PROMPT[:4], **WINDOW))
    assert matched(index, PROMPT) == {"a": 1}
    assert losses(index) == {}


def test_cached_prefix_ends_at_the_last_linear_attention_state(index: Index) -> None:
    ingest(index, "a", stored([1, 2, 3, 4], PROMPT[:16], **FULL), stored([2], PROMPT[:8], **LINEAR))
    assert matched(index, PROMPT) == {"a": 2}
    ingest(index, "a", stored([4], PROMPT[8:16], 2, **LINEAR))
    assert matched(index, PROMPT) == {"a": 4}
    ingest(index, "a", removed([3], group_idx=0))
    assert matched(index, PROMPT) == {"a": 2}


def test_cached_prefix_ends_where_any_cache_group_lacks_blocks(index: Index) -> None:
    full = stored([1, 2, 3, 4], PROMPT[:16], **FULL)
    window = stored([1, 2, 3], PROMPT[:12], **WINDOW)
    ingest(index, "a", window, stored([2, 4], PROMPT[:16], **LINEAR), full)
    assert matched(index, PROMPT) == {"a": 2}


def test_cache_group_events_that_omit_blocks_are_not_counted_as_losses(index: Index) -> None:
    # vLLM publishes the tokens of all blocks, and the hashes of the cached ones, the group with
    # windows first.
    window = stored([3, 4], PROMPT[:16], **WINDOW)
    ingest(index, "a", window, stored([1, 2, 3, 4], PROMPT[:16], **FULL))
    ingest(
        index, "a", stored([], PROMPT[16:20], 4, **WINDOW), stored([5], PROMPT[16:20], 4, **FULL)
    )
    assert losses(index) == {}
    assert matched(index, PROMPT) == {"a": 4}


def test_prompt_matches_no_block_if_a_linear_attention_group_has_none(index: Index) -> None:
    ingest(index, "a", stored([], PROMPT[:8], **LINEAR), stored([1, 2], PROMPT[:8], **FULL))
    assert matched(index, PROMPT) == {}


def test_blocks_without_a_full_attention_counterpart_are_counted_as_losses(index: Index) -> None:
    ingest(index, "a", stored([7, 8], PROMPT[:8], **WINDOW))
    ingest(index, "b", stored([1], PROMPT[:4], **FULL), stored([1, 9], PROMPT[:8], **WINDOW))
    assert losses(index) == {"unpaired_block": 3}
    assert matched(index, PROMPT) == {"b": 1}


def test_each_block_of_a_truncated_prefix_is_counted_in_its_best_tier(index: Index) -> None:
    ingest(index, "a", stored([1, 2, 3, 4], PROMPT[:16], **FULL), stored([2], PROMPT[:8], **LINEAR))
    ingest(index, "a", offloaded([2, 3], group_idx=0), removed([2, 3], group_idx=0))
    (score,) = index.score("m", PROMPT)
    assert score.tiers == {"gpu": 1, "cpu": 1}


def test_offloaded_blocks_of_an_unknown_group_are_counted_as_losses(index: Index) -> None:
    ingest(index, "a", offloaded([1, 2], group_idx=5), removed([4], group_idx=5))
    assert losses(index) == {"unknown_block": 3}


@pytest.mark.parametrize(
    ("last", "beyond", "loss"),
    [
        ({"group_idx": 63}, {"group_idx": 64}, "bad_group_idx"),
        ({"medium": "t" * 64}, {"medium": "t" * 65}, "bad_medium"),
        ({"lora_name": "n" * 512}, {"lora_name": "n" * 513}, "bad_lora_name"),
    ],
)
def test_event_values_beyond_their_limits_are_counted_as_losses(
    index: Index, last: dict[str, Any], beyond: dict[str, Any], loss: str
) -> None:
    ingest(index, "a", stored([1], PROMPT[:4], **last))
    assert losses(index) == {} and index.backend.size().copies == 1
    ingest(index, "a", stored([2], PROMPT[4:8], **beyond))
    assert losses(index) == {loss: 1} and index.backend.size().copies == 1


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([1], PROMPT[:3]), "token_count"),
        (stored([1], PROMPT[:4], size=0), "bad_block_size"),
        (stored([1], [-1] * 4), "bad_token_ids"),
        (stored([b""], PROMPT[:4]), "bad_block_hashes"),
        (stored([1], PROMPT[:4], b"\1" * 65), "bad_parent_block_hash"),
        (stored([1], PROMPT[:4], 99), "unknown_parent"),
        (stored([1], PROMPT[:4], extra_keys=[None, None]), "extra_keys_count"),
        (stored([1], PROMPT[:4], group_idx=-1), "bad_group_idx"),
        (stored([1], PROMPT[:4], kv_cache_spec_kind="x"), "bad_kv_cache_spec_kind"),
        (stored([1], PROMPT[:4], kv_cache_spec_kind=""), "bad_kv_cache_spec_kind"),
        (stored([1], PROMPT[:4], **WINDOWLESS), "bad_kv_cache_spec_sliding_window"),
        (
            stored([1], PROMPT[:4], **WINDOWLESS, kv_cache_spec_sliding_window=-5),
            "bad_kv_cache_spec_sliding_window",
        ),
        (removed([1], group_idx=-1), "bad_group_idx"),
        (removed([1], "x" * 100), "bad_medium"),
        (removed([b""]), "bad_block_hashes"),
    ],
)
def test_invalid_events_are_counted_without_dropping_valid_events(
    event: KVEvent, reason: str
) -> None:
    index = make_index(MemoryBackend())
    ingest(index, "a", stored([7], PROMPT[:4]), event, stored([8], PROMPT[4:8], 7))
    assert losses(index) == {reason: 1}
    assert matched(index, PROMPT) == {"a": 2}


def test_blocks_of_a_group_of_unknown_kind_are_scored_as_those_without_a_kind(
    index: Index,
) -> None:
    ingest(index, "a", stored([1, 2], PROMPT[:8], kv_cache_spec_kind="unknown"))
    assert losses(index) == {} and matched(index, PROMPT) == {"a": 2}


def test_stored_and_removed_events_without_blocks_are_ignored(index: Index) -> None:
    ingest(index, "a", stored([], []), removed([]), stored([1], PROMPT[:4], 0))
    assert losses(index) == {} and matched(index, PROMPT) == {"a": 1}


def test_memory_tiers_above_the_maximum_number_are_counted_as_losses() -> None:
    index = make_index(MemoryBackend())
    ingest(index, "a", stored([1], PROMPT[:4]), *(offloaded([1], f"medium{n}") for n in range(20)))
    assert losses(index) == {"too_many_tiers": 6}
    assert index.backend.size().copies == 15


def test_block_hashes_may_be_bytes_or_signed_or_unsigned_numbers(index: Index) -> None:
    ingest(index, "a", stored([b"\5" * 24 + (9).to_bytes(8, "big")], PROMPT[:4]))
    ingest(index, "a", stored([-1], PROMPT[4:8], 9), removed([(1 << 64) - 1]))
    assert matched(index, PROMPT) == {"a": 1}


def test_metrics_count_added_removed_and_unknown_blocks() -> None:
    index = make_index(MemoryBackend())
    ingest(index, "a", block(0), block(1), block(2), removed([2, 7, 8]), removed([9]))
    index.clear("a")
    lines = index.metrics.render({}).splitlines()
    for name, value in (("admissions", 3), ("evictions", 3)):
        assert f"kvcache_index_{name}_total {value}.0" in lines
    assert index.metrics.skipped_events == {"unknown_block": 3}


# Few blocks, so that they come again, continue each other, and are held twice.
blocks = st.integers(1, 6)
hashes = st.one_of(blocks, blocks, blocks, st.sampled_from([b"", b"\x01"]))
parents = st.one_of(st.none(), st.just(0), hashes)
lists: st.SearchStrategy[list[BlockHash]] = st.lists(hashes, max_size=3)


@st.composite
def a_store(draw: st.DrawFn) -> KVEvent:
    engine = draw(lists)
    size = draw(st.sampled_from([2, 2, 2, 2, 1, 3, 0]))
    count = len(engine) * size if draw(st.integers(0, 9)) else draw(st.integers(0, 5))
    fields: dict[str, Any] = {
        "medium": draw(st.sampled_from(["GPU", "GPU", "GPU", "CPU"])),
        "group_idx": draw(st.sampled_from([None, None, None, 1])),
        "lora_name": draw(st.sampled_from([None, None, None, "x"])),
        "extra_keys": draw(st.sampled_from([None, None, [None], [["salt"]]])),
    }
    return stored(engine, [draw(st.integers(0, 1))] * count, draw(parents), size, **fields)


events = st.one_of(
    a_store(),
    a_store(),
    a_store(),
    st.builds(removed, lists, st.sampled_from(["GPU", "CPU"])),
    st.builds(offloaded, lists),
    st.just(AllBlocksCleared()),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(events, max_size=8), max_size=3))
def test_grouped_events_have_the_same_effect_as_single_events(batches: list[list[KVEvent]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        together = state(batches)
        patch.setattr(EventParser, "similarity", unique_similarity)
        assert together == state(batches)


def unique_similarity(parser: EventParser, event: KVEvent) -> int:
    """A key that no two events share, so that none are grouped."""
    return id(event)


def state(batches: list[list[KVEvent]]) -> tuple[Any, ...]:
    """Everything that an index of blocks of two tokens knows after these batches."""
    backend = MemoryBackend()
    index = make_index(backend, block_size=2)
    outcomes = [ingest(index, "a", *events_of_batch) for events_of_batch in batches]
    maps = {number: (map_.covered, map_.repeats) for number, map_ in backend._maps.items()}
    held = dict(backend.table), maps, index.backend.size()
    return outcomes, held, index.metrics.skipped_events


def holders(*pods: str) -> Holders:
    holders = Holders(100)
    for pod in pods:
        holders.register(source(pod), 0)
    return holders


def test_scores_match_the_documented_example_of_llm_d() -> None:
    """Blocks 1001 to 1006: a on gpu has 1, 2, 3 (also cpu) and 6; b on cpu has 4 and 5."""
    copies = [(0b01,), (0b01,), (0b01, 0b01), (0, 0b10), (0, 0b10), (0b01,)]
    weights = {"gpu": 1.0, "cpu": 0.5}
    lookup = Lookup(copies, holders("a", "b"), TIERS[:2])
    (score,) = score_prefixes(lookup, blocks=6, candidates=0b11, weights=weights)
    assert (score.pod, score.score, score.tiers) == ("a", 3.0, {"gpu": 3})
    copies[2] = (0, 0b01)
    (score,) = score_prefixes(lookup, blocks=6, candidates=0b11, weights=weights)
    assert (score.score, score.tiers, score.match_ratio) == (2.5, {"gpu": 2, "cpu": 1}, 0.5)


masks = st.integers(0, (1 << 12) - 1)
found_blocks = st.lists(st.lists(masks, min_size=1, max_size=3).map(tuple), max_size=20)


grouped = st.lists(st.booleans(), min_size=12, max_size=12)


@given(found_blocks, grouped, masks, st.integers(1, 3), st.integers(1, 4))
def test_pod_is_scored_by_the_shortest_prefix_among_its_cache_groups(
    masks_by_block: list[tuple[int, ...]],
    scored: list[bool],
    left: int,
    groups: int,
    repeat: int,
) -> None:
    """Twelve holders in groups of engines; some give no points, some are gone."""
    masks_by_block = [block_masks for block_masks in masks_by_block for _ in range(repeat)]
    everybody = Holders(12)
    for number, is_scored in enumerate(scored):
        everybody.register(source(f"pod{number // groups}"), number % groups, is_scored)
    candidates = everybody.candidates("m")
    for number in set_bits(left):
        everybody.release(number)
    scores = score_prefixes(
        Lookup(masks_by_block, everybody, TIERS),
        blocks=max(1, len(masks_by_block)),
        candidates=candidates,
        weights=EXACT,
    )
    expected: dict[str, set[tuple[int, float]]] = {}
    for number, is_scored in enumerate(scored):
        if is_scored and not left >> number & 1:
            has = alone(masks_by_block, number)
            shares = expected.setdefault(f"pod{number // groups}", {has})
            min_matched = min(shares | {has})[0]
            expected[f"pod{number // groups}"] = {
                share for share in shares | {has} if share[0] == min_matched
            }
    assert {score.pod for score in scores} == {
        pod for pod, shares in expected.items() if min(shares)[0]
    }
    assert all((score.matched, score.score) in expected[score.pod] for score in scores)


def alone(copies_by_block: list[tuple[int, ...]], number: int) -> tuple[int, float]:
    """How many blocks a holder has from the first one on, and what they are worth."""
    weights = [EXACT[tier] for tier in TIERS]
    matched = 0
    worth = 0.0
    for copies in copies_by_block:
        weights_here = [
            weight for weight, mask in zip(weights, copies, strict=False) if mask >> number & 1
        ]
        if not weights_here:
            break
        matched = matched + 1
        worth = worth + max(weights_here)
    return matched, worth


def test_least_recently_used_adapters_are_forgotten_above_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.extensions.kv_index.holders.MAX_ADAPTERS", 3)
    holders = Holders(3)
    for engine in map(source, "ab"):
        holders.register(engine, 0)
    for name, number in (("a", 0), ("b", 0), ("a", 1), ("c", 1), ("a", 1), ("d", 1)):
        holders.add_adapter(name, number)
    assert [holders.candidates(name) for name in "abcd"] == [
        0b11,
        0,
        0b10,
        0b10,
    ]  # b was used longest ago
    for number, left in ((1, [0b01, 0, 0, 0]), (0, [0] * 4)):
        holders.release(number)
        assert [holders.candidates(name) for name in "abcd"] == left
    assert len(holders._adapters) == 0
