"""What the prefix store keeps, and of what it has heard, against plain lists."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex import prefix_store
from app.kvindex.chunks import CHUNK_BYTES, Beginning, Chunk
from app.kvindex.cuts import CutText
from app.kvindex.prefix_store import (
    CHUNK_BYTES_BESIDE,
    KEY_BYTES,
    Kept,
    KeptChunks,
    PrefixCounts,
    PrefixStore,
    Sightings,
)
from app.tokenization import LocalTokenizer


def kept_of(serial: int, ids: int, cuts: int) -> Kept:
    numbers = [array("I", range(length)) for length in (ids, cuts, cuts)]
    return Kept(serial, 0, Chunk(bytes(CHUNK_BYTES), *numbers))


def kept_bytes(ids: int, cuts: int) -> int:
    return CHUNK_BYTES_BESIDE + CHUNK_BYTES + 4 * (ids + 2 * cuts)


SHAPES = [(0, 0), (5, 0), (0, 3), (70, 20)]
"""Tokens and cuts of chunks."""
EMPTY_BYTES = kept_bytes(0, 0)


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 6), st.sampled_from(SHAPES)), max_size=5, unique_by=lambda it: it[0]
        )
    ),
    st.integers(0, 6 * EMPTY_BYTES),
)
def test_chunks_that_were_used_last_are_kept(
    texts: list[list[tuple[int, tuple[int, int]]]], limit_bytes: int
) -> None:
    kept, serials = KeptChunks(limit_bytes), count()
    made = {(key, shape): kept_of(next(serials), *shape) for key in range(7) for shape in SHAPES}
    expected: dict[int, tuple[Kept, int]] = {}  # what was not used for longest comes first
    for text in texts:
        kept.use([key for key, _ in text], [made[each] for each in text])
        for key, shape in reversed(text):
            expected.pop(key, None)
            expected[key] = made[key, shape], kept_bytes(*shape)
        while sum(size for _, size in expected.values()) > limit_bytes:
            expected.pop(next(iter(expected)))
        for key in range(7):
            assert kept.get(key) is (expected[key][0] if key in expected else None)
        assert kept.size_bytes == sum(size for _, size in expected.values())


def test_what_fills_the_room_to_the_last_byte_is_kept() -> None:
    for limit_bytes, stays in ((2 * EMPTY_BYTES, True), (2 * EMPTY_BYTES - 1, False)):
        kept = KeptChunks(limit_bytes)
        kept.use([1, 2], [kept_of(1, 0, 0), kept_of(2, 0, 0)])
        assert (kept.get(1) is not None, kept.get(2) is not None) == (True, stays)


@given(st.lists(st.lists(st.integers(0, 20), max_size=12)), st.integers(0, 2_000))
def test_of_keys_that_were_heard_of_the_latest_are_remembered(
    asked: list[list[int]], limit_bytes: int
) -> None:
    seen, most = Sightings(limit_bytes), max(1, limit_bytes // (2 * KEY_BYTES))
    young: set[int] = set()
    old: set[int] = set()
    for keys in asked:
        seen.add(keys)
        for key in keys:
            young.add(key)
            if len(young) == most:
                young, old = set(), young
        assert [key for key in range(21) if key in seen] == sorted(young | old)
        assert seen.size_bytes == KEY_BYTES * (len(young) + len(old))


def words(number: int, length: int) -> str:
    """A text of so many bytes that is like no other."""
    return " ".join(f"{number} word{place}" for place in range(length))[:length]


def encode(store: PrefixStore, subject: LocalTokenizer, *texts: str) -> list[tuple[int, int]]:
    """What each of them adds to the counts: chunks that are reused, bytes seen."""
    found = []
    for text in texts:
        before = store.counts
        assert store.encode(subject, text) == subject.encode(text)
        after = store.counts
        found.append((after.chunks_reused - before.chunks_reused, after.bytes_seen - before.bytes_seen))
        assert after.texts == before.texts + 1
        assert after.hits - before.hits == (after.chunks_reused > before.chunks_reused)
        assert after.bytes_reused == CHUNK_BYTES * after.chunks_reused
    return found


def test_texts_from_one_chunk_on_are_looked_up(embedded: LocalTokenizer) -> None:
    for length, passed in ((CHUNK_BYTES - 1, 3), (CHUNK_BYTES, 0), (CHUNK_BYTES + 1, 0)):
        store, text = PrefixStore(), words(1, length)
        seen, reused = (0, 0) if passed else (length, 1)
        assert store.counts == PrefixCounts(0, 0, 0, 0, 0, 0, 0)
        assert encode(store, embedded, text, text, text) == [(0, seen), (0, seen), (reused, seen)]
        assert store.counts.passed == passed


@pytest.mark.parametrize(("length", "reused"), [(10, 10), (20, 10), (21, 0), (30, 0)])
def test_less_than_half_of_a_text_is_not_worth_it_unless_the_text_grows(
    embedded: LocalTokenizer, length: int, reused: int
) -> None:
    store, begin = PrefixStore(), words(1, 10 * CHUNK_BYTES)
    encode(store, embedded, begin, begin)
    text = begin + words(2, (length - 10) * CHUNK_BYTES)
    assert encode(store, embedded, text) == [(reused, length * CHUNK_BYTES)]
    assert encode(store, embedded, text, text)[-1] == (length, length * CHUNK_BYTES)


def test_a_text_is_kept_when_it_comes_for_the_second_time(embedded: LocalTokenizer) -> None:
    store, text = PrefixStore(), words(1, 8 * CHUNK_BYTES)
    chunks = store.caches["prompt beginnings"]
    sizes = []
    for reused in (0, 0, 8, 8):
        assert encode(store, embedded, text) == [(reused, len(text))]
        sizes.append(chunks.size_bytes > 0)
    assert sizes == [False, True, True, True]
    assert store.counts.mismatches == 0
    assert store.caches["prompt sightings"].size_bytes == 8 * KEY_BYTES


def test_a_text_is_kept_when_it_goes_on_behind_one_that_came_before(embedded: LocalTokenizer) -> None:
    store, begin = PrefixStore(), words(1, 8 * CHUNK_BYTES)
    texts = [begin, begin + words(2, 4 * CHUNK_BYTES), begin]
    assert [reused for reused, _ in encode(store, embedded, *texts)] == [0, 0, 8]


def test_only_long_texts_are_cut_beside_the_event_loop(
    embedded: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = []

    def noting(cut: Callable[[str], CutText], text: str) -> CutText:
        beside.append(len(text))
        return cut(text)

    store = PrefixStore()
    encode(store, embedded, words(0, CHUNK_BYTES))  # finds out how texts are cut
    monkeypatch.setattr(prefix_store, "LONG_TEXT", 1000)
    monkeypatch.setattr(prefix_store, "call_off_hub", noting)
    for number, length in ((1, 1000), (2, 1001)):
        encode(store, embedded, words(number, length), words(number, length))
    assert beside == [1001]


def test_what_does_not_fit_is_encoded_as_a_whole(
    embedded: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, text = PrefixStore(), words(1, 8 * CHUNK_BYTES)
    encode(store, embedded, text, text)
    with monkeypatch.context() as patch:
        patch.setattr(Beginning, "join", lambda beginning, tail: None)
        assert encode(store, embedded, text, text) == [(0, len(text))] * 2
    assert (store.counts.mismatches, store.counts.hits) == (2, 0)
    assert encode(store, embedded, text) == [(8, len(text))]


def test_texts_part_where_they_part(embedded: LocalTokenizer) -> None:
    store, begin = PrefixStore(), words(1, 8 * CHUNK_BYTES)
    one, other = begin + words(2, 4 * CHUNK_BYTES), begin + words(3, 4 * CHUNK_BYTES)
    assert [reused for reused, _ in encode(store, embedded, one, one, one)] == [0, 0, 12]
    assert [reused for reused, _ in encode(store, embedded, other, other, one)] == [8, 12, 12]
