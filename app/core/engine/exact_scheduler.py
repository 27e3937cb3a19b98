"""A scheduler that visits running sequences one by one."""

from __future__ import annotations

from app.core.engine.batch import Batch, S, SequenceState
from app.core.engine.scheduler import AdmittingScheduler


def _preemption_order(sequence: SequenceState) -> tuple[int, int]:
    """Returns a key that is greatest for the next victim; choices of a request arrive together."""
    # vLLM compares arrivals of requests, and takes the first of equal ones: among the choices of
    # the latest request, the one that started first.
    return sequence.priority, sequence.arrived - sequence.choice


class ExactScheduler(AdmittingScheduler[S]):
    """Gives running sequences tokens one by one, as budget and blocks allow."""

    @property
    def decoding(self) -> tuple[int, int]:
        """See `Scheduler`."""
        return len(self._decoding), sum([sequence.computed for sequence in self._decoding])

    def _continue(self, batch: Batch[S]) -> bool:
        return self._continue_singly(batch)

    def _end_visits(self) -> None:
        self._has_visited = False
        self._decoding = [sequence for sequence in self.running if sequence.decodes]

    def _continue_singly(self, batch: Batch[S]) -> bool:
        """Gives running sequences tokens as budget and blocks allow.

        Returns whether one was preempted.
        """
        self._has_visited = True
        preemptions = self.preemptions
        step_slots = self._step_slots
        budget = self.limits.max_num_batched_tokens - step_slots
        prefill_left = self._prefill_left
        allotted: dict[S, int] = {}
        for sequence in list(self.running):
            if budget <= 0 or not sequence.running:  # preempted in this step
                continue
            limit = budget if sequence.decodes else min(budget, prefill_left)
            tokens = self._wanted(sequence, limit)
            if tokens <= 0:
                continue
            slots = sequence.computed + tokens
            for add_slots in self._slots_hooks:
                slots = add_slots(sequence, slots)
            if self.missing_blocks(sequence, slots) and self.blocks.lacks(sequence, slots):
                freed, freed_prefill = self._make_room(sequence, slots, allotted)
                budget += freed
                prefill_left += freed_prefill
                if not sequence.running and self._passes_self_preempted:
                    continue
                if not sequence.running or self.blocks.lacks(sequence, slots):
                    break
            self._grow(sequence, slots)
            allotted[sequence] = tokens
            budget -= tokens + step_slots
            if not sequence.decodes:
                prefill_left -= tokens
        self._compute(allotted, batch)
        return self.preemptions > preemptions

    def _wanted(self, sequence: S, limit: int) -> int:
        """Returns the tokens of a running sequence in the new step.

        Only the free blocks may prevent them.
        """
        if sequence.last and not sequence.decodes:
            return 0
        limit = min(limit, self._prompt_limit)
        tokens = min(sequence.prompt_tokens + sequence.written - sequence.computed, limit)
        for wanted in self._wanted_hooks:
            tokens = wanted(sequence, tokens, limit)
        return tokens

    def _make_room(self, sequence: S, slots: int, allotted: dict[S, int]) -> tuple[int, int]:
        """Preempts sequences until `sequence` has blocks for `slots`, or is preempted itself.

        A victim that a policy protects ends this. Removes the victims from `allotted`, where they
        have a lower priority but were admitted earlier. Returns how many tokens of the step, and
        how many of its prompts, these give back.
        """
        freed = 0
        freed_prefill = 0
        has_room = False
        while not has_room:
            victim = self.running[-1]
            if self.limits.by_priority:
                victim = max(self.running, key=_preemption_order)
            if any([policy.protects(victim) for policy in self.policies]):
                break
            if victim in allotted:
                tokens = allotted.pop(victim)
                freed += tokens + self._step_slots
                if not victim.decodes:
                    freed_prefill += tokens
                    # As in vLLM, the blocks of the prompt can be found although no step computes
                    # them: vLLM caches them when it assigns them.
                    victim.computed += tokens
                    self.blocks.filled(victim)
            self._preempt(victim, sequence)
            has_room = not sequence.running or not self.blocks.lacks(sequence, slots)
        return freed, freed_prefill

    def _compute(self, allotted: dict[S, int], batch: Batch[S]) -> None:
        decodes = []
        for sequence, tokens in allotted.items():
            if not sequence.decodes:
                self._prefill(sequence, tokens, batch)
                continue
            decodes.append(sequence)
            batch.tokens += tokens
            batch.sequences += 1
            batch.context += sequence.computed
            delivered = 0
            if tokens > 1:  # all but one are drafts; only policies know how many are right
                for policy in self.policies:
                    delivered += policy.delivered(sequence, tokens - 1, batch)
            sequence.computed += 1 + delivered
            sequence.written += 1 + delivered
            if sequence.written >= sequence.output_tokens:
                self._end(sequence, batch, is_foreseen=not delivered)
        batch.decodes = decodes
