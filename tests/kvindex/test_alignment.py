"""Blocks of engines on blocks of the index, of any two sizes, alone and several together."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.kvcache.events import BlockHash, BlockStored
from app.engine.kvcache.prompt import Placeholder
from app.kvindex import ingest
from app.kvindex.backend import UNALIGNED, Owned, Store
from app.kvindex.index import Index, IndexSettings
from app.kvindex.ingest import (
    MOST_BLOCK_TOKENS,
    Aligned,
    Ingest,
    PartialBlocks,
    Refused,
    Span,
    StoreGroup,
    Tail,
    align,
    engine_keys_of,
    parent_of,
)
from app.kvindex.keys import Features, request_keys
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import batch, removed, stored
from tests.kvindex.held import matched, source

ROOT = 5


def make_index(block_size: int) -> Index:
    return Index(MemoryBackend(), IndexSettings(block_size=block_size))


def test_pods_with_other_block_sizes_meet_on_the_same_keys() -> None:
    index, tokens = make_index(16), list(range(96))
    index.ingest(batch(stored(range(1, 7), tokens, size=16)), "a", "m")
    index.ingest(batch(stored(range(1, 4), tokens, size=32)), "b", "m")
    index.ingest(batch(stored(range(1, 3), tokens, size=48)), "c", "m")
    assert matched(index, tokens) == {"a": 6, "b": 6, "c": 6}
    assert index.size().blocks == 6


def test_a_prompt_may_fork_inside_a_block_of_the_index() -> None:
    index, common = make_index(64), list(range(32))
    one, two = common + [1000] * 32, common + [2000] * 32
    index.ingest(batch(stored([1, 2, 3, 4], one, size=16)), "a", "m")
    index.ingest(batch(stored([5, 6], two[32:], 2, 16)), "a", "m")
    assert matched(index, one) == {"a": 1} == matched(index, two)


def test_a_tail_that_is_forgotten_is_a_loss_with_a_name() -> None:
    index = make_index(64)
    stores = index._ingest
    stores.tails = type(stores.tails)(3000)
    index.ingest(batch(stored([1, 2], list(range(32)), size=16)), "a", "m")
    index.ingest(batch(stored([3], list(range(16)), 1, 16)), "a", "m")
    assert index.losses.events == {"unaligned_parent": 1}


def test_an_image_is_met_by_engines_of_any_block_size() -> None:
    index, tokens = make_index(16), list(range(64))
    image = [Placeholder("img", 20, 10)]
    index.ingest(
        batch(stored([1, 2, 3, 4], tokens, size=16, extra_keys=[None, [["img", 4]], None, None])), "a", "m"
    )
    index.ingest(batch(stored([1, 2], tokens, size=32, extra_keys=[[["img", 20]], None])), "b", "m")
    assert matched(index, tokens, media=image) == {"a": 4, "b": 4}
    assert matched(index, tokens, media=[Placeholder("other", 20, 10)]) == {"a": 1}


sizes = st.integers(1, 12)


@given(st.data())
def test_any_cut_of_a_prompt_into_events_gives_its_keys_and_removing_all_leaves_nothing(
    data: st.DataObject,
) -> None:
    """Whatever the sizes, and however the engine's blocks are spread over events."""
    size, engine_size, blocks = data.draw(sizes), data.draw(sizes), data.draw(st.integers(1, 12))
    tokens = list(range(1000, 1000 + engine_size * blocks))
    salt = data.draw(st.none() | st.just("salt"))
    index = make_index(size)
    done, events = 0, []
    while done < blocks:
        count = data.draw(st.integers(1, blocks - done))
        part = tokens[done * engine_size : (done + count) * engine_size]
        extra = [["salt"] if salt and not number else None for number in range(done, done + count)]
        events.append(
            stored(range(done + 1, done + count + 1), part, done or None, engine_size, extra_keys=extra)
        )
        done += count
    apart = data.draw(st.booleans())
    for step in [[event] for event in events] if apart else [events]:
        index.ingest(batch(*step), "a", "m")
    full = len(tokens) // size
    assert index.losses.events == {}
    assert matched(index, tokens, salt=salt) == ({"a": full} if full else {})
    if full:
        gone = data.draw(st.integers(1, blocks))
        index.ingest(batch(removed([gone])), "a", "m")
        left = (gone - 1) * engine_size // size
        assert matched(index, tokens, salt=salt) == ({"a": left} if left else {})
        index.ingest(batch(removed([n for n in range(1, blocks + 1) if n != gone])), "a", "m")
    assert index.losses.events == {}
    assert index.size().copies == 0


@dataclass
class Prompt:
    """An engine's blocks from the start of a prompt on, with the features of each."""

    size: int
    engine_size: int
    engine: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)

    def keys(self) -> list[int]:
        """The keys of all its full blocks of the index."""
        folded = []
        for start in range(0, len(self.tokens) // self.size * self.size, self.size):
            begin_here = [
                texts
                for number, texts in enumerate(self.features)
                if start <= number * self.engine_size < start + self.size
            ]
            folded.append(tuple(dict.fromkeys(text for texts in begin_here for text in texts or ())))
        return request_keys("E", self.size).keys(ROOT, self.tokens, folded)

    def span(self, number: int) -> range:
        return range(number * self.engine_size, (number + 1) * self.engine_size)

    def owned(self, number: int) -> tuple[int, ...]:
        """The keys of the full blocks that an engine's block has tokens of."""
        blocks = sorted({token // self.size for token in self.span(number)})
        keys = tuple(self.keys()[blocks[0] : blocks[-1] + 1])
        return keys if self.span(number).stop % self.size == 0 else (*keys, UNALIGNED)

    def tail(self) -> Tail:
        """What is behind its last full block."""
        keys = self.keys()
        full = len(keys) * self.size
        spans = []
        for number in self.behind(full):
            span, before = self.span(number), self.span(number).start // self.size
            spans.append(
                Span(
                    self.engine[number],
                    span.start - full,
                    span.stop - full,
                    self.features[number],
                    tuple(keys[before:]),
                )
            )
        return Tail(keys[-1] if keys else ROOT, self.tokens[full:], tuple(spans))

    def behind(self, token: int) -> list[int]:
        return [number for number in range(len(self.engine)) if self.span(number).stop > token]

    def with_blocks(self, engine: Sequence[int], tokens: list[int], features: list[Features]) -> Prompt:
        more = [*self.engine, *engine], self.tokens + tokens, self.features + features
        return Prompt(self.size, self.engine_size, *more)


@given(st.data(), st.integers(1, 7), st.integers(1, 7))
def test_events_are_cut_as_their_prompt_is(data: st.DataObject, size: int, engine_size: int) -> None:
    prompts = [Prompt(size, engine_size)]
    names = iter(range(1, 100))
    for _ in range(data.draw(st.integers(1, 4))):
        before = data.draw(st.sampled_from(prompts))
        count = data.draw(st.integers(0, 4))
        engine = [next(names) for _ in range(count)]
        tokens = [data.draw(st.integers(0, 9)) for _ in range(count * engine_size)]
        features: list[Features] = [
            data.draw(st.sampled_from([None, None, ("a",), ("b", "a")])) for _ in engine
        ]
        told = features if any(features) else data.draw(st.sampled_from([None, features]))
        tail = before.tail() if before.engine else Tail(ROOT)
        after = before.with_blocks(engine, tokens, features)
        aligned = align(request_keys("E", size), tail, engine, engine_size, tokens, told)
        new = range(len(before.engine), len(after.engine))
        fresh_keys = after.keys()[len(before.keys()) :]
        earlier = before.behind(len(before.keys()) * size) if fresh_keys else []
        steps = [
            before.with_blocks(engine[:n], tokens[: n * engine_size], features[:n])
            for n in range(1, count + 1)
        ]
        assert aligned == Aligned(
            keys=fresh_keys,
            owned=[after.owned(number) for number in new],
            remapped=[(after.engine[number], after.owned(number)) for number in earlier],
            tails={each.engine[-1]: each.tail() for each in steps if len(each.tokens) % size},
        )
        prompts += steps


def test_a_tail_is_kept_for_whom_it_is_if_there_is_room_for_it() -> None:
    tail = Tail(5, [7], (Span(1, 0, 1, None),))
    need = ingest._tail_bytes(tail)
    for limit, kept in ((need, tail), (need - 1, None)):
        tails = PartialBlocks(limit)
        tails.put("a", {1: tail})
        assert (tails.get("a", 1), tails.get("b", 1), tails.get("a", 2)) == (kept, None, None)
        assert (len(tails), tails.size_bytes, tails.limit_bytes) == (
            (1, need, need) if kept else (0, 0, limit)
        )


@pytest.mark.parametrize(
    ("tokens", "spans", "before"), [(0, 0, 0), (1, 1, 0), (1000, 1, 0), (1, 100, 0), (1, 3, 300)]
)
def test_tails_take_no_more_memory_than_is_reckoned(tokens: int, spans: int, before: int) -> None:
    tails = PartialBlocks(1 << 30)
    tracemalloc.start()
    try:
        begin, _ = tracemalloc.get_traced_memory()
        for name in range(1 << 40, (1 << 40) + 50):
            numbers = range(name * 1000, name * 1000 + 1000)
            of_spans = tuple(
                Span(n, n, n, None, tuple(range(n + 1000, n + 1000 + before))) for n in numbers[:spans]
            )
            tails.put(source(), {name: Tail(name, list(numbers[:tokens]), of_spans)})
        taken = tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()
    assert taken <= tails.size_bytes < 3 * taken


SIZE = 2
KEYS = request_keys("E", SIZE)


def run_of(*events: BlockStored, adapter: str | None = None) -> StoreGroup:
    engine = [int(key) for event in events for key in event.block_hashes]
    return StoreGroup(list(events), engine, [parent_of(event) for event in events], 3, "cpu", adapter)


def operation(
    stores: Ingest, run: StoreGroup, known: Mapping[int, Owned] | None = None, model: str = "m"
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
    stores, keys = Ingest(MemoryBackend(), KEYS), plain_keys(run)
    if keys is None:
        with pytest.raises(Refused):
            operation(stores, run, KNOWN)
    else:
        assert operation(stores, run, KNOWN) == Store(3, "cpu", run.engine, keys, keys, (), None, run.adapter)
        assert stores.block_sizes == ({} if len(keys) == len(run.events) else {"m": {SIZE}})


def test_the_first_blocks_follow_the_adapter_or_else_the_model() -> None:
    for adapter, root in ((None, KEYS.root("other")), ("alice", KEYS.root("alice"))):
        for events in ([stored([1], [7, 8], None, 2)], [stored([k], [k, 8], None, 2) for k in (1, 2)]):
            made = operation(Ingest(MemoryBackend(), KEYS), run_of(*events, adapter=adapter), model="other")
            assert list(made.keys) == [KEYS.keys(root, event.token_ids)[0] for event in events]
            assert (made.adapter, made.group, made.tier) == (adapter, 3, "cpu")


@pytest.mark.parametrize(
    ("kind", "scored"),
    [(None, None), ("full_attention", True), ("mla_attention", True), ("sliding_window", False)],
)
def test_only_some_groups_are_scored(kind: str | None, scored: bool | None) -> None:
    event = stored([1], [7, 8], None, 2, kv_cache_spec_kind=kind)
    assert operation(Ingest(MemoryBackend(), KEYS), run_of(event)).scored is scored


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
    stores = Ingest(MemoryBackend(), KEYS)
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
    monkeypatch.setattr(ingest, "MOST_MODELS", 2)
    stores = Ingest(MemoryBackend(), KEYS)
    for model in ("a", "b", "c"):
        for size in range(1, 20):
            operation(stores, run_of(stored([1, 2], range(2 * size), size=size)), model=model)
    assert stores.block_sizes == {model: set(range(1, 9)) for model in ("a", "b")}


def test_a_block_alone_says_nothing_of_the_block_size() -> None:
    stores = Ingest(MemoryBackend(), KEYS)
    operation(stores, run_of(stored([1], range(5), size=5)))
    operation(stores, run_of(stored([1], [1, 2], size=2), stored([2], [3, 4], size=2)))
    assert stores.block_sizes == {}
    operation(stores, run_of(stored([1], [1, 2], size=2), stored([2, 3], [3, 4, 5, 6], size=2)))
    assert stores.block_sizes == {"m": {2}}
