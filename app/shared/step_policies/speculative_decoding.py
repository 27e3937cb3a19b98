"""Speculative decoding: a step checks several proposed tokens of a decode (drafts) together."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from msgspec.structs import replace

from app.core.engine.batch import Batch, Drafted, S, SchedulerLimits, SequenceState
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy, Steps


class Speculation(Protocol):
    """Proposes tokens of decodes (drafts), which one step checks together."""

    padding: int
    """Drafts that fill the admission of a sequence with one token."""

    def propose(self, sequence: SequenceState, limit: int) -> int:
        """Returns the number of drafts for the next step of a decode.

        The reply has room for `limit` drafts.
        """

    def accepted(self, sequence: SequenceState, drafts: int) -> int:
        """Returns the number of right drafts before the first wrong one.

        Returns 0 if only the step itself shows that number.
        """


class Drafts:
    """Drafts that are right at random; `rates` are the chances after right ones (rule 5)."""

    def __init__(self, rates: Sequence[float], rng: Random) -> None:
        self.drafts = len(rates)
        self.padding = len(rates)
        self._rates = rates
        self._rng = rng

    def propose(self, sequence: SequenceState, limit: int) -> int:
        """Returns the number of drafts: as in vLLM, also beyond the end of the reply."""
        return self.drafts

    def accepted(self, sequence: SequenceState, drafts: int) -> int:
        """Draws the number of right drafts before the first wrong one."""
        for number, rate in enumerate(self._rates[:drafts]):
            if self._rng.random() >= rate:
                return number
        return drafts


class SpeculativeDecoding(SchedulingPolicy[S]):
    """Gives decodes the tokens and the blocks of their drafts."""

    visits_decodes = True

    def __init__(self, speculation: Speculation, limits: SchedulerLimits) -> None:
        self._speculation = speculation
        self._max_tokens = 0
        """Tokens that all blocks have room for."""
        self._lookahead = limits.lookahead
        self._padded_resumptions = limits.rules.padded_resumptions
        if limits.rules.counts_draft_slots:
            self.step_slots = limits.draft_slots
        self.start_tokens = 1 + speculation.padding + limits.lookahead

    def attach(self, scheduler: Steps[S]) -> None:
        """Takes the scheduler, whose steps have fewer tokens in older versions."""
        super().attach(scheduler)
        self._max_tokens = scheduler.blocks.capacity * scheduler.blocks.block_size
        if not scheduler.limits.rules.counts_draft_slots:
            scheduler.limits = _with_reserved_slots(scheduler.limits)

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Adds the drafts of a decode."""
        if not sequence.decodes:
            return tokens
        draft_limit = max(0, sequence.output_tokens - sequence.written - 1)
        tokens += self._speculation.propose(sequence, draft_limit)
        return min(tokens, self._max_tokens - sequence.computed - sequence.rejected, limit)

    def slots(self, sequence: S, slots: int) -> int:
        """Adds the drafts under way, which could be right, and the tokens of the drafter."""
        return min(slots + sequence.rejected + self._lookahead, self._max_tokens)

    def delivered(self, sequence: S, drafts: int, batch: Batch[S]) -> int:
        """Notes which drafts are right."""
        accepted = self._speculation.accepted(sequence, drafts)
        delivered = min(accepted, max(0, sequence.output_tokens - sequence.written - 1))
        batch.drafts[sequence] = Drafted(drafts, accepted, delivered=delivered)
        sequence.rejected += drafts - delivered
        return delivered

    def fits(self, admission: Admission[S], batch: Batch[S]) -> bool:
        """Returns whether the drafts of a sequence fit, for which it needs blocks, too."""
        sequence = admission.sequence
        if not admission.has_prefill:
            admission.padding = self._padding(sequence, batch)
        end = sequence.computed + admission.tokens
        slots = self.slots(sequence, end + admission.padding)
        admission.reserve = slots - end
        if admission.tokens + admission.padding > admission.budget:
            return False
        if slots <= sequence.prompt_tokens + sequence.written:
            return True
        blocks = self.scheduler.blocks
        if not sequence.held:
            return blocks.fits(sequence, slots, admission.cached, admission.spare)
        return self.scheduler.missing_blocks(sequence, slots) + admission.spare <= blocks.free

    def _padding(self, sequence: S, batch: Batch[S]) -> int:
        """Returns the drafts that fill the admission of a sequence with one token.

        vLLM lets the sequence look like the decodes of a step, and rejects these drafts. A step
        that continues prompts has none.
        """
        continued = batch.sequences - len(batch.admitted)
        if continued > len(batch.decodes) or self._padded_resumptions == "none":
            return 0
        if continued or (sequence.computed and self._padded_resumptions == "all"):
            return self._speculation.padding
        return 0

    def started(self, admission: Admission[S], batch: Batch[S]) -> None:
        """Adds the wrong drafts."""
        if admission.padding:
            sequence = admission.sequence
            batch.drafts[sequence] = Drafted(admission.padding, accepted=0, delivered=0)
            sequence.rejected += admission.padding

    def complete_step(self, batch: Batch[S]) -> None:
        """Lets the next steps assign no blocks for drafts that were wrong."""
        for sequence, drafted in batch.drafts.items():
            sequence.rejected -= drafted.drafts - drafted.delivered


def _with_reserved_slots(limits: SchedulerLimits) -> SchedulerLimits:
    """Returns the limits of versions that take the slots of all drafts from a step in advance."""
    reserved = limits.draft_slots * limits.max_num_seqs
    tokens = max(1, limits.max_num_batched_tokens - reserved)
    return replace(limits, max_num_batched_tokens=tokens)
