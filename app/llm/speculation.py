"""Prompt lookup (vLLM's method ngram): the text so far proposes the next tokens of a reply, as
drafts.

A step computes the drafts of a sequence behind its newest token. `LLMEngine` then samples one
position after another, while the sampled token is the draft. So drafts change the number of steps,
and no reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from app.engine.core.batch import SequenceState
from app.llm.sequence import Sequence
from config.sections.engine import SpeculativeConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray


def look_up(ids: NDArray[numpy.int32], least: int, most: int, count: int) -> list[int]:
    """Returns up to `count` ids that follow an earlier place with the same last `least` to `most`
    ids.

    The longest match counts, and the first of equally long ones, as in vLLM. A match may overlap
    the end.
    """
    found, length = 0, 0
    ends = numpy.flatnonzero(ids[:-1] == ids[-1]) + 1
    while len(ends) and length < most:
        found, length = int(ends[0]), length + 1
        ends = ends[ends > length]
        ends = ends[ids[ends - length - 1] == ids[-length - 1]]
    following: list[int] = ids[found : found + count].tolist()
    return following if length >= least else []


class PromptLookup:
    """The scheduler's `Speculation`: proposes drafts, and notes them in their sequence."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config

    def propose(self, sequence: SequenceState, most: int) -> int:
        assert isinstance(sequence, Sequence)
        known, config = sequence.known_ids, self._config
        if not known:
            known.extend(sequence.prompt_ids)
        known.extend(sequence.output_ids[len(known) - sequence.prompt_tokens :])
        ids = numpy.frombuffer(known, numpy.int32)
        count = min(most, sequence.draft_limit, config.num_speculative_tokens)
        sequence.drafts = look_up(ids, config.prompt_lookup_min, config.prompt_lookup_max, count)
        return len(sequence.drafts)

    def accepted(self, drafts: int) -> int:
        return 0  # only the step shows it
