"""How far a sequence has come: read from outside now and then, so nothing is noted for it."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from app.engine.batch import SequenceState


class Phase(IntEnum):
    """What a sequence does that is not over."""

    QUEUED = 0
    PREFILL = 1
    TRANSFER = 2
    """The cache of its prompt, which was computed elsewhere, is on its way."""
    DECODE = 3
    PREEMPTED = 4


class SequenceStatus(Struct, frozen=True, gc=False):
    """`computed` tokens of the prompt are there or under way; `held` blocks count where steps are shared.

    Moments are monotonic seconds: since when it runs, and when its first token was due.
    """

    phase: Phase
    computed: int
    held: int
    scheduled_s: float | None
    first_s: float | None


def phase_in_steps(state: SequenceState) -> Phase:
    """What a sequence does, as its scheduler knows it."""
    if state.decodes or state.last:
        return Phase.DECODE
    if state.running:
        return Phase.PREFILL
    if state.preemptions:
        return Phase.PREEMPTED
    return Phase.TRANSFER if state.held else Phase.QUEUED


def computed_in_steps(state: SequenceState) -> int:
    """Tokens of the prompt that are scheduled; a decode that advances in bulk has them all."""
    return state.prompt_tokens if state.decodes or state.last else min(state.computed, state.prompt_tokens)
