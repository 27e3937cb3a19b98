"""Blocks of engines on blocks of the index, of any two sizes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.prompt import Placeholder
from app.kvindex import alignment
from app.kvindex.alignment import Aligned, PartialBlocks, Span, Tail, align
from app.kvindex.backend import UNALIGNED
from app.kvindex.index import Index, IndexSettings
from app.kvindex.keys import Features, request_keys
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import batch, removed, stored
from tests.kvindex.held import matched, source

ROOT = 5


def make_index(block_size: int) -> Index:
    return Index(MemoryBackend(), IndexSettings(block_size=block_size))


def test_small_blocks_fill_large_ones() -> None:
    index, tokens = make_index(64), list(range(128))
    index.ingest(batch(stored(range(100, 108), tokens, size=16)), "a", "m")
    assert matched(index, tokens) == {"a": 2}
    index.ingest(batch(removed([105])), "a", "m")
    assert matched(index, tokens) == {"a": 1}


def test_large_blocks_are_cut_into_small_ones() -> None:
    index, tokens = make_index(64), list(range(256))
    index.ingest(batch(stored([500, 501], tokens, size=128)), "a", "m")
    assert matched(index, tokens) == {"a": 4}
    index.ingest(batch(removed([500])), "a", "m")
    assert matched(index, tokens) == {} and index.size().blocks == 2


def test_pods_with_other_block_sizes_meet_on_the_same_keys() -> None:
    index, tokens = make_index(16), list(range(96))
    index.ingest(batch(stored(range(1, 7), tokens, size=16)), "a", "m")
    index.ingest(batch(stored(range(1, 4), tokens, size=32)), "b", "m")
    index.ingest(batch(stored(range(1, 3), tokens, size=48)), "c", "m")
    assert matched(index, tokens) == {"a": 6, "b": 6, "c": 6}
    assert index.size().blocks == 6


def test_blocks_that_come_one_by_one_fill_a_large_one_in_the_end() -> None:
    index, tokens = make_index(64), list(range(64))
    for number in range(4):
        parent = number or None
        event = stored([number + 1], tokens[number * 16 : number * 16 + 16], parent, 16)
        index.ingest(batch(event), "a", "m")
    assert matched(index, tokens) == {"a": 1}
    assert index.losses.events == {}


def test_less_than_a_block_of_the_index_is_kept_for_later() -> None:
    index, tokens = make_index(64), list(range(48))
    index.ingest(batch(stored([1, 2, 3], tokens, size=16)), "a", "m")
    assert index.size().blocks == 0
    index.ingest(batch(removed([3])), "a", "m")
    assert index.losses.events == {}


def test_a_prompt_may_fork_inside_a_block_of_the_index() -> None:
    index, common = make_index(64), list(range(32))
    one, two = common + [1000] * 32, common + [2000] * 32
    index.ingest(batch(stored([1, 2, 3, 4], one, size=16)), "a", "m")
    index.ingest(batch(stored([5, 6], two[32:], 2, 16)), "a", "m")
    assert matched(index, one) == {"a": 1} == matched(index, two)


def test_a_tail_that_is_forgotten_is_a_loss_with_a_name() -> None:
    index = make_index(64)
    stores = index._ingest.stores
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    need = alignment._tail_bytes(tail)
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
