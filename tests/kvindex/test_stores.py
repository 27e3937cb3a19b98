"""What operations the stores of engines come to, alone and several together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.events import BlockHash, BlockStored
from app.kvindex import alignment
from app.kvindex.alignment import (
    MOST_BLOCK_TOKENS,
    BlockAligner,
    Refused,
    StoreGroup,
    engine_keys_of,
    parent_of,
)
from app.kvindex.backend import UNALIGNED, Owned, Store
from app.kvindex.keys import request_keys
from tests.kvindex.engines import stored
from tests.kvindex.held import source

SIZE = 2
KEYS = request_keys("E", SIZE)


def run_of(*events: BlockStored, adapter: str | None = None) -> StoreGroup:
    engine = [int(key) for event in events for key in event.block_hashes]
    return StoreGroup(list(events), engine, [parent_of(event) for event in events], 3, "cpu", adapter)


def operation(
    stores: BlockAligner, run: StoreGroup, known: Mapping[int, Owned] | None = None, model: str = "m"
) -> Store:
    blocks = {(run.group, key): (known or {}).get(key) for key in (*run.parents, *run.engine) if key}
    return stores.operation(source(model=model), run, blocks)


KNOWN: dict[int, Owned] = {21: 1234, 22: (55, 1235), 23: (55, UNALIGNED), 24: ()}
"""What the index knows of blocks of earlier batches."""


def plain_keys(run: StoreGroup) -> list[int] | None:
    """Event by event; None where one of them cannot be used, or a block comes twice."""
    after: dict[int, int] = {}
    for event, parent in zip(run.events, run.parents, strict=True):
        owned = after.get(parent, KNOWN.get(parent)) if parent else KEYS.root("m")
        before = owned[-1] if isinstance(owned, tuple) and owned else owned
        blocks, extra = len(event.block_hashes), event.extra_keys
        if not isinstance(before, int) or before == UNALIGNED:
            return None
        if len(event.token_ids) != blocks * SIZE or (extra and len(extra) != blocks):
            return None
        keys = KEYS.keys(before, event.token_ids)
        after |= zip(event.block_hashes, keys, strict=True)  # type: ignore[arg-type]
    keys = [after[key] for key in run.engine]
    return keys if len(run.engine) == len(after) == len(set(keys)) else None


@st.composite
def a_run(draw: st.DrawFn) -> StoreGroup:
    """Blocks of a few tokens, mostly of new names, behind earlier ones of theirs or of others."""
    events: list[BlockStored] = []
    unused = list(range(1, 13))
    for _ in range(draw(st.integers(2, 4))):
        names = [unused.pop(0) for _ in range(draw(st.integers(0, 3)))]
        if names and not draw(st.integers(0, 9)):
            names[-1] = 1
        parent = draw(st.sampled_from([None, None, *range(1, 13), 21, 22, 23, 24, 99]))
        count = len(names) * SIZE if draw(st.integers(0, 9)) else draw(st.integers(0, 7))
        tokens = [draw(st.integers(0, 5)) for _ in range(count)]
        blank = draw(st.sampled_from([len(names), len(names), 0, 1]))
        extra = draw(st.sampled_from([None, [None] * blank]))
        events.append(stored(names, tokens, parent, SIZE, extra_keys=extra))
    return run_of(*events, adapter=draw(st.sampled_from([None, "m"])))


@given(a_run())
def test_several_stores_are_one_operation_where_each_can_be_used_and_no_block_comes_twice(
    run: StoreGroup,
) -> None:
    stores, keys = BlockAligner(KEYS), plain_keys(run)
    if keys is None:
        with pytest.raises(Refused):
            operation(stores, run, KNOWN)
    else:
        assert operation(stores, run, KNOWN) == Store(3, "cpu", run.engine, keys, keys, (), None, run.adapter)
        assert stores.block_sizes == ({} if len(keys) == len(run.events) else {"m": {SIZE}})


def test_apart_every_store_has_its_own_blocks_and_parent() -> None:
    events = [stored([1, 2], [1, 2, 3, 4], 9, 2), stored([], [], None, 2), stored([3], [5, 6], 2, 2)]
    assert list(run_of(*events, adapter="alice").apart()) == [
        run_of(event, adapter="alice") for event in events
    ]


def test_what_goes_on_behind_a_tail_is_told_one_by_one() -> None:
    stores = BlockAligner(KEYS)
    operation(stores, run_of(stored([1], [7], size=1)))
    behind = stored([2], [8, 9], 1, 2)
    with pytest.raises(Refused):
        operation(stores, run_of(behind, stored([3], [8, 9], None, 2)), {1: 5})
    assert list(operation(stores, run_of(behind)).keys) == KEYS.keys(KEYS.root("m"), [7, 8])


def test_the_first_blocks_follow_the_adapter_or_else_the_model() -> None:
    for adapter, root in ((None, KEYS.root("other")), ("alice", KEYS.root("alice"))):
        for events in ([stored([1], [7, 8], None, 2)], [stored([k], [k, 8], None, 2) for k in (1, 2)]):
            made = operation(BlockAligner(KEYS), run_of(*events, adapter=adapter), model="other")
            assert list(made.keys) == [KEYS.keys(root, event.token_ids)[0] for event in events]
            assert (made.adapter, made.group, made.tier) == (adapter, 3, "cpu")


@pytest.mark.parametrize(
    ("kind", "scored"),
    [(None, None), ("full_attention", True), ("mla_attention", True), ("sliding_window", False)],
)
def test_only_some_groups_are_scored(kind: str | None, scored: bool | None) -> None:
    event = stored([1], [7, 8], None, 2, kv_cache_spec_kind=kind)
    assert operation(BlockAligner(KEYS), run_of(event)).scored is scored


LONGEST = MOST_BLOCK_TOKENS


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([1], [], size=0), "bad_block_size"),
        (stored([1], [7], size=-1), "bad_block_size"),
        (stored([1], range(LONGEST + 1), size=LONGEST + 1), "bad_block_size"),
        (stored([1], range(LONGEST), size=LONGEST), None),
        (stored([1], [7], size=1), None),
        (stored([1, 2], [7, 8, 9], size=2), "token_count"),
        (stored([1, 2], [7, 8, 9], size=1), "token_count"),
        (stored([1, 2], [7, 8], size=1, extra_keys=[None]), "extra_keys_count"),
        (stored([1, 2], [7, 8], size=1, extra_keys=[None] * 3), "extra_keys_count"),
        (stored([1, 2], [7, 8], size=1, extra_keys=[]), None),
        (stored([1, 2], [7, 8], size=1, extra_keys=[None] * 2), None),
        (stored([1], [7, -1], size=2), "bad_token_ids"),
        (stored([1], [7, 8], 99, size=2), "unknown_parent"),
        (stored([1], [7, 8], 23, size=2), "unaligned_parent"),
        (stored([1], [7, 8], 24, size=2), "unaligned_parent"),
        (stored([1], [7, 8], 21, size=2), None),
        (stored([1], [7, 8], 22, size=2), None),
    ],
)
def test_what_is_wrong_with_a_store_has_a_name(event: BlockStored, reason: str | None) -> None:
    stores = BlockAligner(KEYS)
    if reason is None:
        operation(stores, run_of(event), KNOWN)
    else:
        with pytest.raises(Refused, match=f"^{reason}$"):
            operation(stores, run_of(event), KNOWN)
        assert stores.block_sizes == {}


@pytest.mark.parametrize(
    ("parent", "number"),
    [(None, None), (0, None), (5, 5), (-1, (1 << 64) - 1), (1 << 64 | 7, 7), (b"\1" * 32, int("01" * 8, 16))],
)
def test_a_parent_is_a_number_of_64_bits_or_none(parent: BlockHash | None, number: int | None) -> None:
    assert parent_of(stored([1], [7], parent)) == number


@pytest.mark.parametrize("bad", [b"", bytes(1000)])
def test_hashes_that_are_none_are_refused_by_their_field(bad: bytes) -> None:
    with pytest.raises(Refused, match="^bad_block_hashes$"):
        engine_keys_of("block_hashes", [1, bad])
    with pytest.raises(Refused, match="^bad_parent_block_hash$"):
        parent_of(stored([1], [7], bad))


def test_a_few_block_sizes_of_a_few_models_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MOST_MODELS", 2)
    stores = BlockAligner(KEYS)
    for model in ("a", "b", "c"):
        for size in range(1, 20):
            operation(stores, run_of(stored([1, 2], range(2 * size), size=size)), model=model)
    assert stores.block_sizes == {model: set(range(1, 9)) for model in ("a", "b")}


def test_a_block_alone_says_nothing_of_the_block_size() -> None:
    stores = BlockAligner(KEYS)
    operation(stores, run_of(stored([1], range(5), size=5)))
    operation(stores, run_of(stored([1], [1, 2], size=2), stored([2], [3, 4], size=2)))
    assert stores.block_sizes == {}
    operation(stores, run_of(stored([1], [1, 2], size=2), stored([2, 3], [3, 4, 5, 6], size=2)))
    assert stores.block_sizes == {"m": {2}}
