"""Which tokens of a text are kept with which chunk of its bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from app.kvindex.chunks import (
    CHARACTERS_BEHIND,
    CHUNK_BYTES,
    chunk_keys,
    cut_chunks,
    cuts_from_last,
    join_ids,
)
from app.kvindex.cuts import Cutter
from app.tokenization import default_tokenizer

CUTTER = Cutter.of(default_tokenizer().backend)


@pytest.mark.slow
@pytest.mark.parametrize("margin", [CHARACTERS_BEHIND, 300])
@given(
    words=st.lists(
        st.sampled_from(["word", "東京", "é", "À¿", "🎉", "x" * 70, "a, b"]), min_size=50, max_size=400
    )
)
def test_kept_tokens_end_well_before_their_chunk(margin: int, words: list[str]) -> None:
    assert CUTTER is not None
    text = " ".join(words)
    content, encoded = text.encode(), CUTTER.encode(text)
    chunks = list(cut_chunks(content, 0, (0, 0), encoded, margin))
    assert [chunk.content for chunk in chunks] == [
        content[start : start + CHUNK_BYTES]
        for start in range(0, len(content) - CHUNK_BYTES + 1, CHUNK_BYTES)
    ]
    assert len(chunks) == len(chunk_keys(0, content))
    for number in range(1, len(chunks) + 1):
        known = chunks[:number]
        ids = join_ids(known)
        assert ids == encoded.ids[: len(ids)]
        cuts = list(cuts_from_last(known, len(ids)))
        assert cuts[::-1] == encoded.cuts[: len(cuts)]
        end = len(content[: number * CHUNK_BYTES].decode(errors="ignore"))
        if cuts:
            assert cuts[0][0] == len(ids)
            assert cuts[0][1] <= end - margin
        inside = [cut for cut in encoded.cuts if cut[1] <= end]
        assert len(cuts) == len([cut for cut in inside[:-2] if cut[1] <= end - margin])


def test_chunks_behind_known_ones_are_those_of_the_whole_text() -> None:
    assert CUTTER is not None
    text = "Über straße, and the café. " * 60
    encoded = CUTTER.encode(text)
    whole = list(cut_chunks(text.encode(), 0, (0, 0), encoded, CHARACTERS_BEHIND))
    begin = next(cuts_from_last(whole[:3], len(join_ids(whole[:3]))))
    behind = [cut for cut in encoded.cuts if cut > begin]
    encoded = type(encoded)(encoded.ids, behind)
    assert list(cut_chunks(text.encode(), 3, begin, encoded, CHARACTERS_BEHIND)) == whole[3:]


@pytest.mark.parametrize("length", [0, 1, 255, 256, 511, 512, 700])
def test_a_key_stands_for_all_text_up_to_its_end(length: int) -> None:
    content, expected, key = bytes(number % 251 for number in range(length)), [], 258
    for start in range(0, length // 256 * 256, 256):
        key = xxh64_intdigest(key.to_bytes(8, "little") + content[start : start + 256])
        expected.append(key)
    assert chunk_keys(258, content) == expected
