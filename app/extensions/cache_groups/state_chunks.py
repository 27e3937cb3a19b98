"""Chunks of prompts that end where linear attention keeps a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from app.core.engine.kvcache.cached_sequence import CachedSequence


class StateChunks(Struct, frozen=True, kw_only=True):
    """Cuts prompts: linear attention keeps the state after the last token of a step.

    A prompt therefore pauses at the end of a block, before its last block, and at its junction,
    where it begins to differ from other prompts.
    """

    block_size: int
    max_prompt_tokens: int
    """Maximum tokens of one prompt in a step."""
    checkpoints_before_end: bool
    """See `SchedulerRules`."""

    def clip(self, sequence: CachedSequence, start: int, tokens: int, *, junction: int) -> int:
        """Returns how many of the `tokens` from `start` on a step computes.

        `junction` is in blocks, and 0 without one.
        """
        size = self.block_size
        known = sequence.prompt_tokens + sequence.reply_tokens
        prefill_end = max(sequence.prompt_tokens, known - 1)
        if start >= prefill_end:
            return tokens
        end = start + tokens
        if end < prefill_end:
            whole_end = end // size * size
            if whole_end > start or size <= self.max_prompt_tokens:
                end = whole_end
        stops = [(known - self.checkpoints_before_end) // size * size]
        if start % size:
            stops.append((start // size + 1) * size)
        if start < junction * size < end:
            stops.append(start + (junction * size - start) // size * size)
        end = min([stop for stop in stops if start < stop < end], default=end)
        return max(0, end - start)
