"""Prompt lookup (vLLM's method ngram): the text so far proposes the next tokens of a reply, as drafts.

A step computes the drafts of a sequence behind its newest token. `LLMEngine` then samples one position after
another, while the sampled token is the draft. So drafts change the number of steps, and no reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy

from config.sections.engine import SpeculativeConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray


def look_up(ids: NDArray[numpy.int32], least: int, most: int, count: int) -> list[int]:
    """Returns up to `count` ids that follow an earlier place with the same last `least` to `most` ids.

    The longest match counts, and the first of equally long ones, as in vLLM. A match may overlap the end.
    """
    found, length = 0, 0
    ends = numpy.flatnonzero(ids[:-1] == ids[-1]) + 1
    while len(ends) and length < most:
        found, length = int(ends[0]), length + 1
        ends = ends[ends > length]
        ends = ends[ids[ends - length - 1] == ids[-length - 1]]
    following: list[int] = ids[found : found + count].tolist()
    return following if length >= least else []


class History:
    """Token ids of one sequence, 4 bytes each."""

    def __init__(self, prompt_ids: Sequence[int], output_tokens: int) -> None:
        """`output_tokens` is the most that follow."""
        self._ids = numpy.empty(len(prompt_ids) + output_tokens, numpy.int32)
        self._ids[: len(prompt_ids)] = prompt_ids
        self._prompt_tokens = self._size = len(prompt_ids)

    def drafts(self, output_ids: list[int], most: int, config: SpeculativeConfig) -> list[int]:
        """Returns at most `most` drafts after `output_ids`, which extend the ids of the call before."""
        before, self._size = self._size, self._prompt_tokens + len(output_ids)
        self._ids[before : self._size] = output_ids[before - self._prompt_tokens :]
        ids, count = self._ids[: self._size], min(most, config.num_speculative_tokens)
        return look_up(ids, config.prompt_lookup_min, config.prompt_lookup_max, count)
