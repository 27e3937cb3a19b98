"""How a batch is applied: in slices, each with a stamp of its own, with others running in between."""

from __future__ import annotations

from typing import Any

import pytest

from app.kvcache.events import KVEvent
from app.kvindex.backend import Outcome, Stamp, Steps
from app.kvindex.batches import Batch
from app.kvindex.decoding import Part
from app.kvindex.holders import Source
from app.kvindex.index import Index, IndexSettings
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import PROMPT, batch, block, removed, stored


class Noting(MemoryBackend):
    """Remembers the stamps of what it applies."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps: list[Stamp | None] = []

    def applying(self, source: Source, operations: Any, stamp: Stamp | None = None) -> Steps[Outcome]:
        self.stamps.append(stamp)
        return (yield from super().applying(source, operations, stamp))


def make() -> tuple[Index, Noting]:
    backend = Noting()
    return Index(backend, IndexSettings(block_size=4)), backend


def parts(*some: list[KVEvent], **losses: int) -> Batch:
    """A batch of these parts, all of them with these losses."""
    return Batch(7.5, 0, [Part(events, losses) for events in some])


def apply(index: Index, sent: Batch, *more: Any) -> tuple[int, Outcome | None]:
    """How often others could run, and what was done."""
    steps, pauses = index.ingesting(sent, "a", "m", *more), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return pauses, end.value
        pauses += 1


def test_slices_of_a_batch_are_numbered_and_only_the_first_begins_anew() -> None:
    index, backend = make()
    sent = parts([block(0)], [], [block(1), block(2)], unknown_event=2)
    assert apply(index, sent, 5, True) == (2, Outcome(added=3))
    assert backend.stamps == [Stamp(5, 7.5, True, 0), Stamp(5, 7.5, False, 1)]
    assert index.losses.events == {"unknown_event": 6}


def test_what_begins_anew_loses_what_it_had() -> None:
    index, _ = make()
    assert apply(index, parts([block(0), block(1)]), 5) == (0, Outcome(added=2))
    assert apply(index, parts([block(0)], [block(1)], [block(2)]), 6, True) == (2, Outcome(3, 2))


def test_a_batch_of_nothing_is_applied_too() -> None:
    index, backend = make()
    assert apply(index, parts([], []), 5) == (1, Outcome())
    assert backend.stamps == [Stamp(5, 7.5)]
    assert apply(index, parts()) == (0, Outcome())
    assert len(backend.stamps) == 1


def test_only_what_has_a_number_has_a_stamp() -> None:
    index, backend = make()
    index.ingest(batch(block(0)), "a", "m")
    index.ingest(batch(block(1), ts=2.0), "a", "m", 5)
    assert backend.stamps == [None, Stamp(5, 2.0)] and index.size().copies == 2


def test_blocks_that_come_and_go_are_counted_and_those_that_nobody_has() -> None:
    index, _ = make()
    apply(index, parts([block(0), block(1), block(2)], [removed([2, 7, 8]), removed([9])]))
    index.clear("a")
    lines = index.metrics.render({}, {}, {}).splitlines()
    for name, value in (("admissions", 3), ("evictions", 3)):
        assert f"kvcache_index_{name}_total {value}.0" in lines
    assert index.losses.events == {"unknown_block": 3}


@pytest.mark.parametrize(("blocks", "pauses"), [(0, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_others_have_a_turn_while_a_long_prompt_with_a_salt_is_keyed(
    blocks: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[None] = []
    monkeypatch.setattr("app.kvindex.index.pause", lambda: turns.append(None))
    index, _ = make()
    whole = index.block_keys("m", PROMPT[: 4 * blocks], salt="salt")
    monkeypatch.setattr(type(index._keys), "slice_blocks", 4)
    assert index.block_keys("m", [*PROMPT[: 4 * blocks], 1, 2], salt="salt") == whole
    assert len(whole) == blocks and len(turns) == pauses


def test_a_prompt_of_an_adapter_has_other_keys_than_one_of_its_base() -> None:
    index, _ = make()
    index.ingest(batch(stored([1], PROMPT[:4], lora_name="alice")), "a", "m")
    keys = [index.block_keys(*asked) for asked in (("m", PROMPT), ("alice", PROMPT))]
    assert keys[0] != keys[1] == index.block_keys("m", PROMPT, lora="alice")
    assert [score.pod for score in index.score("m", keys=keys[1])] == ["a"]
    assert (index.base_model("alice"), index.base_model("bob")) == ("m", "bob")
