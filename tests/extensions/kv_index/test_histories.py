"""Any history of blocks that have parts of each other leaves what a plain model of it leaves."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.extensions.kv_index.backend import (
    UNALIGNED,
    Backend,
    Clear,
    CoveredKeys,
    Offload,
    Operation,
    Outcome,
    Remove,
    Store,
    keys_of,
)
from app.extensions.kv_index.copies import count_copies, set_bits
from app.extensions.kv_index.memory import MAX_COPY_BYTES, REPEAT_BYTES, MemoryBackend, weigh_bytes
from tests.extensions.kv_index.conftest import MakeBackend
from tests.extensions.kv_index.engines import Copy, content, source, store

TIERS = "gpu", "cpu", "disk"
ENGINE = range(1, 6)
KEYS = range(11, 16)


class FakeEngine:
    """One group of an engine:

    what it calls blocks, where it has them, and which it stored more than once.
    """

    def __init__(self) -> None:
        self.owned: dict[int, tuple[int, ...]] = {}
        self.held: set[tuple[int, str]] = set()
        self.repeats: dict[tuple[int, str], int] = {}

    def store(self, store: Store, outcome: Outcome) -> None:
        for engine, covered in zip(store.engine_keys, store.covered, strict=True):
            earlier = self.owned.get(engine)
            if earlier == covered:
                if all((key, store.tier) in self.held for key in keys_of(covered)):
                    self.repeats[engine, store.tier] = self.repeats.get((engine, store.tier), 0) + 1
            elif earlier is not None:
                lost = {key for key in keys_of(earlier) if key not in keys_of(covered)}
                self._lose({(key, tier) for key, tier in self.held if key in lost}, outcome)
        self.owned |= dict(zip(store.engine_keys, map(_whole, store.covered), strict=True))
        for engine, joined in store.joined:
            if joined not in self.owned.get(engine, (joined,)):
                self.owned[engine] = (joined, *self.owned[engine])
        self.add(store.request_keys, store.tier, outcome)

    def add(self, keys: Sequence[int], tier: str, outcome: Outcome) -> None:
        new = {(key, tier) for key in keys} - self.held
        self.held |= new
        outcome.added += len(new)

    def offload(self, engine: Sequence[int], tier: str, outcome: Outcome) -> None:
        for name in engine:
            if name in self.owned:
                self.add(keys_of(self.owned[name]), tier, outcome)
            else:
                outcome.unknown += 1

    def remove(self, engine: Sequence[int], tier: str, is_tier: bool, outcome: Outcome) -> None:
        for name in engine:
            if name not in self.owned or not is_tier:
                outcome.unknown += 1
            elif left := self.repeats.pop((name, tier), 0):
                self.repeats |= {(name, tier): left - 1} if left > 1 else {}
            else:
                keys = keys_of(self.owned[name])
                self._lose(self.held & {(key, tier) for key in keys}, outcome)
                if not any(key in keys for key, _ in self.held):
                    del self.owned[name]
                    for other in TIERS:
                        self.repeats.pop((name, other), None)

    def _lose(self, copies: set[tuple[int, str]], outcome: Outcome) -> None:
        self.held -= copies
        outcome.removed += len(copies)


def _whole(owned: CoveredKeys) -> tuple[int, ...]:
    return (owned,) if isinstance(owned, int) else owned


class Model:
    def __init__(self) -> None:
        self.engines: dict[tuple[str, int], FakeEngine] = {}
        self.tiers = {"gpu", "cpu"}

    def apply(self, pod: str, operation: Operation) -> Outcome:
        outcome = Outcome()
        match operation:
            case Clear():
                for name in [name for name in self.engines if name[0] == pod]:
                    outcome.removed += len(self.engines.pop(name).held)
            case Store():
                self.tiers.add(operation.tier)
                self.engines.setdefault((pod, operation.group), FakeEngine()).store(
                    operation, outcome
                )
            case Offload():
                self.tiers.add(operation.tier)
                engine = self.engines.get((pod, operation.group), FakeEngine())
                engine.offload(operation.engine_keys, operation.tier, outcome)
            case Remove():
                engine = self.engines.get((pod, operation.group), FakeEngine())
                engine.remove(
                    operation.engine_keys, operation.tier, operation.tier in self.tiers, outcome
                )
        return outcome

    def content(self) -> dict[int, set[Copy]]:
        held: dict[int, set[Copy]] = {}
        for (pod, group), engine in self.engines.items():
            for key, tier in engine.held:
                held.setdefault(key, set()).add((pod + (f"#{group}" if group else ""), tier))
        return held


def part_of_prompt(first: int, count: int, is_whole: bool) -> tuple[int, ...]:
    keys = tuple(range(first, min(first + count, 16)))
    if is_whole:
        return keys
    return (*keys, UNALIGNED)


parts = st.builds(part_of_prompt, st.sampled_from(KEYS), st.integers(0, 2), st.booleans())
names = st.lists(st.sampled_from(ENGINE), min_size=1, max_size=3, unique=True)
groups = st.integers(0, 1)
tiers = st.sampled_from(["gpu", "gpu", "cpu", "disk"])


@st.composite
def stores(draw: st.DrawFn) -> Store:
    engine = draw(names)
    owned = [draw(parts) for _ in engine]
    keys = list(dict.fromkeys(key for part in owned for key in keys_of(part)))
    earlier = draw(st.lists(st.sampled_from(ENGINE), max_size=2, unique=True)) if keys else []
    joined = [(name, draw(st.sampled_from(keys))) for name in earlier if name not in engine]
    return Store(
        group=draw(groups),
        tier=draw(tiers),
        engine_keys=engine,
        covered=owned,
        request_keys=keys,
        joined=joined,
    )


operations: st.SearchStrategy[Operation] = st.one_of(
    stores(),
    stores(),
    stores(),
    st.builds(Remove, groups, tiers, names),
    st.builds(Remove, groups, tiers, names),
    st.builds(Offload, groups, tiers, names),
    st.builds(Clear),
)
histories: st.SearchStrategy[Any] = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(operations, min_size=1, max_size=3)), max_size=20
)


def check(backend: Backend, model: Model) -> None:
    assert content(backend, KEYS) == model.content()
    assert backend.size().copies == sum(len(engine.held) for engine in model.engines.values())
    for (pod, group), engine in model.engines.items():
        names_of_group = [(group, name) for name in ENGINE]
        covered = [
            None if owned is None else _whole(owned)
            for owned in backend.covered_keys(source(pod), names_of_group)
        ]
        assert covered == [engine.owned.get(name) for name in ENGINE]


@given(histories)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_index_matches_a_reference_model_after_any_event_history(
    make_backend: MakeBackend, history: Any
) -> None:
    backend = make_backend()
    model = Model()
    for tier in model.tiers:  # Redis learns of every tier from a first block
        backend.apply(source("first"), [store([1], [11], tier), Clear()])
    for pod, batch in history:
        expected = Outcome()
        for operation in batch:
            expected.merge(model.apply(pod, operation))
        assert backend.apply(source(pod), batch) == expected
        check(backend, model)


def recount(backend: MemoryBackend) -> None:
    """What the backend reckons is what it holds, and whoever has a block has a name for it."""
    held = dict(backend.table)
    maps = {number: list(engine_map.covered) for number, engine_map in backend._maps.items()}
    assert backend._copies == sum(map(count_copies, held.values())) == backend.size().copies
    assert backend._repeats == sum(len(engine_map.repeats) for engine_map in backend._maps.values())
    assert all(
        tier < len(backend.tiers)
        for engine_map in backend._maps.values()
        for tier, _ in engine_map.repeats
    )
    weigh = backend.table.weigh
    assert backend.table.weight == sum(map(weigh, held.values())) <= backend.table.bound
    unit = 1 if weigh is weigh_bytes else MAX_COPY_BYTES
    assert backend.size_bytes == unit * backend.table.weight + REPEAT_BYTES * backend._repeats
    named = {
        number: {key for name in names for key in keys_of(backend._maps[number].covered[name])}
        for number, names in maps.items()
    }
    assert all(
        key in named[number]
        for key, masks in held.items()
        for mask in masks
        for number in set_bits(mask)
    )


@given(histories, st.sampled_from([3, 6, 1000]), st.sampled_from([1, 3, 2048]), st.booleans())
def test_block_counts_and_memory_weights_stay_exact_after_evictions(
    history: Any, bound: int, a_slice: int, by_bytes: bool
) -> None:
    backend = MemoryBackend(500 * bound, weigh_bytes) if by_bytes else MemoryBackend(bound)
    model = Model()
    total = Outcome()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("memory.SLICE", a_slice), ("memory.STALE_ALLOWANCE", 0)):
            patch.setattr(f"app.extensions.kv_index.{name}", value)
        for pod, batch in history:
            for operation in batch:
                model.apply(pod, operation)
            total.merge(backend.apply(source(pod), batch))
            recount(backend)
            assert total.added == total.removed + backend.size().evicted + backend.size().copies
        for pod in backend.pods():
            backend.clear(pod)
    recount(backend)
    assert (len(backend.table), backend._maps, len(backend.holders)) == (0, {}, 0)
