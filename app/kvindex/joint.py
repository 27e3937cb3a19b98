"""A known beginning of a text and its newly encoded end, joined where both say the same."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from app.kvindex.chunks import Chunk, cuts_from_last, join_ids
from app.kvindex.cuts import Cut, CutText

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
    def of(cls, chunks: Sequence[Chunk]) -> "Beginning | None":
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
