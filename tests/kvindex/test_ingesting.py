"""How a batch is applied: in slices, each with a stamp of its own, with others running in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.kvcache.events import KVEvent
from app.kvindex.backend import Outcome, Stamp
from app.kvindex.decoding import Batch
from app.kvindex.holders import Source
from app.kvindex.index import Index, IndexSettings
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import PROMPT, batch, block, removed, stored


class Noting(MemoryBackend):
    """Remembers the stamps of what it applies."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps: list[Stamp | None] = []

    def apply(self, source: Source, operations: Any, stamp: Stamp | None = None) -> Outcome:
        self.stamps.append(stamp)
        return super().apply(source, operations, stamp)


def make() -> tuple[Index, Noting]:
    backend = Noting()
    return Index(backend, IndexSettings(block_size=4)), backend


def apply(index: Index, *events: KVEvent, losses: Sequence[str] = (), **more: Any) -> Outcome | None:
    return index.ingest(Batch(7.5, 0, events, losses), "a", "m", **more)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each pause."""
    made: list[None] = []
    for module in ("index", "keys"):
        monkeypatch.setattr(f"app.kvindex.{module}.pause_if_possible", lambda: made.append(None))
    return made


def test_slices_of_a_batch_are_numbered_and_only_the_first_begins_anew(turns: list[None]) -> None:
    index, backend = make()
    index._ingest.slice_blocks = 4
    apply(index, block(0), sequence=4)
    lost = ["unknown_event"] * 2
    found = apply(index, block(0), block(1), block(2), losses=lost, sequence=5, restart=True)
    assert found == Outcome(3, 1) and len(turns) == 1
    assert backend.stamps[1:] == [Stamp(5, 7.5, True, 0), Stamp(5, 7.5, False, 1)]
    assert index.losses.events == {"unknown_event": 2}


def test_a_batch_of_nothing_is_applied_too() -> None:
    index, backend = make()
    assert apply(index, sequence=5) == Outcome() and backend.stamps == [Stamp(5, 7.5)]


def test_only_what_has_a_number_has_a_stamp() -> None:
    index, backend = make()
    index.ingest(batch(block(0)), "a", "m")
    index.ingest(batch(block(1), ts=2.0), "a", "m", 5)
    assert backend.stamps == [None, Stamp(5, 2.0)] and index.size().copies == 2


def test_blocks_that_come_and_go_are_counted_and_those_that_nobody_has() -> None:
    index, _ = make()
    apply(index, block(0), block(1), block(2), removed([2, 7, 8]), removed([9]))
    index.clear("a")
    lines = index.metrics.render({}, {}, {}).splitlines()
    for name, value in (("admissions", 3), ("evictions", 3)):
        assert f"kvcache_index_{name}_total {value}.0" in lines
    assert index.losses.events == {"unknown_block": 3}


@pytest.mark.parametrize(("blocks", "pauses"), [(0, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_others_have_a_turn_while_a_long_prompt_with_a_salt_is_keyed(
    blocks: int, pauses: int, turns: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
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
