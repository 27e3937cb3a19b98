"""The tokens of a text in chunks of 256 bytes, each under a key that stands for all text up to its end.

A known beginning of a text, some chunks, and its newly encoded end are joined where both say the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from xxhash import xxh64_intdigest

from app.kvindex.cuts import Cut, CutText

CHUNK_BYTES = 256
CHARACTERS_BEHIND = 32
"""Least characters between the last kept token of a chunk and its end: no later text can change it then."""
CUTS_BEHIND = 2
"""Least further cuts there."""

_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens between two cuts: where those of the chunk before end, and the last sure cut in this one.

    In arrays, which take four bytes a number, to a list's thirty-six.
    """

    content: bytes
    ids: array[int]
    cut_tokens: array[int]
    """Of this chunk, before each cut."""
    cut_characters: array[int]
    """Of the whole text, before each cut."""


def chunk_keys(root: int, content: bytes) -> list[int]:
    """The key of every full chunk: XXH64 of the key before it (at first `root`) in 8 bytes, and the chunk."""
    keys, key = [], root
    for start in range(0, len(content) - CHUNK_BYTES + 1, CHUNK_BYTES):
        key = xxh64_intdigest(key.to_bytes(8, "little") + content[start : start + CHUNK_BYTES])
        keys.append(key)
    return keys


def cut_chunks(content: bytes, known: int, begin: Cut, text: CutText, margin: int) -> Iterator[Chunk]:
    """The full chunks of a text behind `known` ones.

    Args:
        content: the text in UTF-8.
        begin: where the tokens of the known chunks end.
        text: its `ids` from the start of the text on, its `cuts` those behind `begin`.
        margin: least characters between the last token of a chunk and its end.
    """
    places = [characters for _, characters in text.cuts]
    done, tokens = 0, begin[0]
    ends = _character_ends(content, known)
    for number, end in enumerate(ends, start=known):
        sure = max(done, min(bisect_right(places, end - margin), bisect_right(places, end) - CUTS_BEHIND))
        cuts = text.cuts[done:sure]
        stop = cuts[-1][0] if cuts else tokens
        yield Chunk(
            content=content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES],
            ids=array("I", text.ids[tokens:stop]),
            cut_tokens=array("I", [before - tokens for before, _ in cuts]),
            cut_characters=array("I", [characters for _, characters in cuts]),
        )
        done, tokens = sure, stop


def _character_ends(content: bytes, known: int) -> Iterator[int]:
    """Characters of the text that are complete at the end of each full chunk behind `known` ones."""
    started = _characters(content[: known * CHUNK_BYTES])
    for end in range((known + 1) * CHUNK_BYTES, len(content) + 1, CHUNK_BYTES):
        started += _characters(content[end - CHUNK_BYTES : end])
        straddles = content[end : end + 1].translate(None, _CONTINUATION) != content[end : end + 1]
        yield started - straddles


def _characters(part: bytes) -> int:
    return len(part.translate(None, _CONTINUATION))


def join_ids(chunks: Sequence[Chunk]) -> list[int]:
    """The tokens of successive chunks."""
    ids: list[int] = []
    for chunk in chunks:
        ids.extend(chunk.ids)
    return ids


def cuts_from_last(chunks: Sequence[Chunk], tokens: int) -> Iterator[Cut]:
    """The cuts of successive chunks that hold `tokens`, from right to left."""
    first = tokens
    for chunk in reversed(chunks):
        first -= len(chunk.ids)
        places = zip(reversed(chunk.cut_tokens), reversed(chunk.cut_characters), strict=True)
        for before, characters in places:
            yield first + before, characters


AGREED_TOKENS, AGREED_CUTS = 12, 4
"""What has to come out again as it is known, at least, up to the end of what is known: three words."""
SPARE_CUTS = 2
"""Words before those, which may come out differently: a text may be treated specially where it begins."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Known tokens of a text."""

    ids: list[int]
    cuts: list[Cut]
    """The last ones: from where the text is to be encoded anew, to the end of the known tokens."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Beginning | None:
        """The tokens of successive chunks; None where they are too few to be of use."""
        ids = join_ids(chunks)
        cuts: list[Cut] = []
        for cut in cuts_from_last(chunks, len(ids)):
            cuts.append(cut)
            agreed = cuts[:-SPARE_CUTS]
            if len(agreed) >= AGREED_CUTS and len(ids) - agreed[-1][0] >= AGREED_TOKENS:
                return cls(ids, cuts[::-1])
        return None

    def join(self, tail: CutText) -> CutText | None:
        """These tokens and those of `tail`, the text from the first cut on; with the cuts behind the last.

        None where the two do not agree for long enough before the last cut.
        """
        (first, start), (end, place) = self.cuts[0], self.cuts[-1]
        last = bisect_left(tail.cuts, place - start, key=itemgetter(1))
        if last == len(tail.cuts) or tail.cuts[last][1] != place - start:
            return None
        begin = tail.cuts[last][0]
        known, again = _from_the_last(self.cuts), _from_the_last(tail.cuts[: last + 1])
        tokens = _same_at_the_end(self.ids[first:], tail.ids[:begin])
        cuts = [cut for cut in known[-_same_at_the_end(known, again) :] if cut[0] <= tokens]
        if len(cuts) < AGREED_CUTS or cuts[0][0] < AGREED_TOKENS:
            return None
        rest = [(before + end - begin, at + start) for before, at in tail.cuts[last + 1 :]]
        return CutText(self.ids + tail.ids[begin:], rest)


def _same_at_the_end(known: Sequence[object], again: Sequence[object]) -> int:
    """How many are the same, from the last one back."""
    same = 0
    for one, other in zip(reversed(known), reversed(again), strict=False):
        if one != other:
            break
        same += 1
    return same


def _from_the_last(cuts: Sequence[Cut]) -> list[Cut]:
    """Tokens and characters between each cut and the last one."""
    end, place = cuts[-1]
    return [(end - before, place - at) for before, at in cuts]
