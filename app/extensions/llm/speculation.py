"""Prompt lookup (vLLM's method ngram): the text so far proposes the next tokens of a reply.

A step computes these tokens, the drafts, behind the newest token of a sequence. `LLMEngine` then
samples one position after another, while the sampled token is the draft. So drafts change the
number of steps, and no reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from app.core.engine.batch import SequenceState
from app.extensions.llm.sequence import Sequence
from vllm_facts.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PromptLookup:
    """The scheduler's `Speculation`: proposes drafts, and stores them in their sequence."""

    padding = 0

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config

    def propose(self, sequence: SequenceState, most: int) -> int:
        """Stores up to `most` drafts in the sequence, and returns their number."""
        assert isinstance(sequence, Sequence)
        config = self._config
        history = sequence.lookup_ids
        if not history:
            history.extend(sequence.prompt_ids)
        history.extend(sequence.output_ids[len(history) - sequence.prompt_tokens :])
        sequence.drafts = look_up(
            numpy.frombuffer(history, numpy.int32),
            min_match=config.prompt_lookup_min,
            max_match=config.prompt_lookup_max,
            count=min(most, sequence.draft_limit, config.num_speculative_tokens),
        )
        return len(sequence.drafts)

    def accepted(self, sequence: SequenceState, drafts: int) -> int:
        """Returns 0: only the step shows which drafts are right."""
        return 0


def look_up(ids: NDArray[numpy.int32], min_match: int, max_match: int, count: int) -> list[int]:
    """Returns up to `count` ids that follow an earlier occurrence of the last ids.

    An occurrence has `min_match` to `max_match` ids. The longest one counts, and the first of
    equally long ones, as in vLLM. It may overlap the end.
    """
    end = 0
    length = 0
    ends = numpy.flatnonzero(ids[:-1] == ids[-1]) + 1
    while len(ends) and length < max_match:
        end = int(ends[0])
        length += 1
        ends = ends[ends > length]
        ends = ends[ids[ends - length - 1] == ids[-length - 1]]
    following: list[int] = ids[end : end + count].tolist()
    if length >= min_match:
        return following
    return []
