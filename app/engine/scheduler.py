"""Continuous batching as vLLM V1 does it: which sequences get how many tokens in the next step.

Pure: no clock, no sockets, no randomness. It owns what waits and what runs; `StepLoop` says when a step is
made and when its tokens are there (step model of docs/fidelity.md, rules 3 and 4).

A decode takes one token a step, needs a block every `block_size` steps and ends at a step that is known, so
decodes advance in bulk: two calendars say who needs a block and who ends, and a step costs what changes in
it, not what runs. Only where blocks run out, or a budget does not reach all, one sequence is looked at after
another. A property test holds both ways to the rules, told in the plainest way.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import Generic, TypeVar

from app.engine.batch import Batch, Blocks, Drafts, S, SchedulerLimits, SequenceState
from app.lora.adapters import LoRASlots

FIRST = -(1 << 128)
"""Before all priorities."""
PRIORITY = 1 << 48
"""More than sequences ever come: in one number, a priority decides before the order of arrival."""
SLACK = 64
"""Entries of removed sequences that the heaps keep before they are cleared."""


W = TypeVar("W", bound=SequenceState)
_place = attrgetter("place")


class WaitingQueue(Generic[W]):
    """First come, first served, or by priority; but adapters decide first.

    A sequence whose adapter is in memory goes before one whose adapter would have to be loaded. One whose
    adapter cannot be loaded now holds up no other (simulator.md 10.2). A sequence that leaves the queue for a
    slot keeps its adapter in memory until `left`.
    """

    def __init__(self, lora: LoRASlots | None = None, by_priority: bool = False) -> None:
        """Without `lora` no sequence has an adapter."""
        self._lora = LoRASlots(0, lambda adapter: False) if lora is None else lora
        self._by_priority = by_priority
        self._heaps: dict[str | None, list[tuple[int, W]]] = {}
        """By adapter: place by priority and order of arrival, and the sequence."""
        self._entries = 0
        """In all heaps, with those of sequences that were removed."""
        self.members: set[W] = set()
        """All that wait."""
        self._adapters: dict[W, str] = {}
        """Adapters that running sequences hold: each may be unloaded before its sequence leaves."""
        self._arrivals = 0

    def is_ready(self, adapter: str | None) -> bool:
        """Returns whether a sequence with this adapter could run now."""
        return adapter is None or self._lora.is_ready(adapter) or self._lora.has_room()

    def add(self, sequence: W, first: bool = False) -> None:
        """Adds a sequence: one that was here before at its old place, or `first`, before all others."""
        if not sequence.arrived:
            self._arrivals += 1
            sequence.arrived = self._arrivals
        place = sequence.arrived
        if first:
            place += FIRST
        elif self._by_priority:
            place += sequence.priority * PRIORITY
        self.members.add(sequence)
        self._entries += 1
        heap = self._heaps.get(sequence.adapter)
        if heap is None:
            heap = self._heaps[sequence.adapter] = []
        heappush(heap, (place, sequence))

    def remove(self, sequence: W) -> bool:
        """Takes a sequence out of the queue; False when it does not wait."""
        if sequence not in self.members:
            return False
        self.members.remove(sequence)
        self._clear()
        return True

    def head(self) -> W | None:
        """Returns the next one; None when none may start."""
        members = self.members
        if not members:
            return None
        if len(self._heaps) == 1 and (heap := self._heaps.get(None)):  # as nearly always
            if heap[0][1] not in members:
                heap = self._live(None)
            return heap[0][1]
        heads = [heap[0] for adapter in list(self._heaps) if (heap := self._live(adapter))]
        room = self._lora.has_room()
        ready = [it for it in heads if self._lora.is_ready(it[1].adapter) or room and it[0] < FIRST // 2]
        if not ready and room:
            ready = heads
        return min(ready)[1] if ready else None

    def pop(self, sequence: W) -> None:
        """Takes out the `head`, which has a slot now."""
        heappop(self._heaps[sequence.adapter])
        self._entries -= 1
        self.members.remove(sequence)
        if self._entries > SLACK:
            self._clear()
        if sequence.adapter is not None:
            self.hold(sequence)

    def hold(self, sequence: W) -> None:
        """Keeps the adapter of a sequence that got a slot in memory."""
        adapter = sequence.adapter
        if adapter is not None and self._lora.enter(adapter):
            self._adapters[sequence] = adapter

    def left(self, sequence: W) -> None:
        if self._adapters and (adapter := self._adapters.pop(sequence, None)) is not None:
            self._lora.leave(adapter)

    def _clear(self) -> None:
        """Drops entries of sequences that were removed, before they outnumber those that wait."""
        if self._entries <= 2 * len(self.members) + SLACK:
            return
        for adapter, heap in list(self._heaps.items()):
            self._heaps[adapter] = kept = [entry for entry in heap if entry[1] in self.members]
            heapify(kept)
        self._entries = sum(map(len, self._heaps.values()))

    def _live(self, adapter: str | None) -> list[tuple[int, W]]:
        heap = self._heaps[adapter]
        while heap and heap[0][1] not in self.members:
            heappop(heap)
            self._entries -= 1
        if not heap:
            del self._heaps[adapter]
        return heap


class Scheduler(Generic[S]):
    """Makes one batch after another. `blocks` has room for the longest sequence at least."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[S],
        waiting: WaitingQueue[S] | None = None,
        speculation: Drafts | None = None,
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self._block_size = blocks.block_size
        self.waiting: WaitingQueue[S] = waiting or WaitingQueue()
        self.running: list[S] = []
        """In order of admission, with those whose last token is in flight."""
        self.fetching: list[S] = []
        """Who waits for the cache of a remote prefill, and has blocks for it; who came last stands last."""
        self.preemptions = 0
        self.paused = False
        """Admit none."""
        self._speculation = speculation
        self._in_bulk = speculation is None
        self._limit = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._places = count()
        self._step = 0
        """The number of the step that is made next."""
        self._under_way = 0
        """Steps made whose tokens are not there."""
        self.prefilling: list[S] = []
        """Running, with a part of the prompt left; in order of admission."""
        self._decoding: list[S] = []
        """In order of admission; another list after each change, so that batches can keep it."""
        self._leads = 0
        """The sum of theirs."""
        self._needs: dict[int, list[S]] = {}
        """Who needs a block, by step."""
        self._ends: dict[int, list[S]] = {}
        """Who gets its last token, by step."""
        self._singly = False
        """Decodes were looked at one by one: nothing is known of them by step."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute, now or later."""
        return not self.running and not self.fetching and (self.paused or not self.waiting.members)

    def add(self, sequence: S) -> None:
        """Has a sequence wait for its first step."""
        self.waiting.add(sequence)

    def remove(self, sequence: S) -> None:
        """It ends before its time. What is in flight for it is nobody's."""
        if sequence.running:
            if sequence.decodes:
                self._part(sequence)
            elif sequence in self.prefilling:
                self.prefilling.remove(sequence)
            self._leave(sequence, 0)
            return
        if sequence in self.fetching:
            self.fetching.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._forget(sequence)

    def fetched(self, sequence: S) -> None:
        """The cache of its prompt has come: all but the last token, which has to be computed, is there."""
        if sequence in self.fetching:
            self.fetching.remove(sequence)
            sequence.computed, sequence.remote = sequence.prompt_tokens - 1, False
            self.blocks.filled(sequence)
            # It has blocks already, which those before it may want.
            self.waiting.add(sequence, first=True)

    def schedule(self) -> Batch[S] | None:
        """Returns the next step; None when there is nothing to compute."""
        if not (self._decoding or self.prefilling or self.waiting.members):
            return None
        batch: Batch[S] = Batch()
        preempted = self._continue(batch)
        if not preempted and not self.paused and self.waiting.members:
            self._admit(batch)
        if batch.tokens:
            self._step += 1
            self._under_way += 1
        if self._singly:
            self._gather()
        if batch.prefilled:
            self._sample(batch)
        if batch.tokens:
            return batch
        return self.schedule() if preempted and not self._under_way else None

    def complete(self, batch: Batch[S]) -> None:
        """The tokens of `batch`, the oldest under way, are there: whoever had its last leaves."""
        self._under_way -= 1
        for sequence in batch.ends:
            if sequence.running:
                self._leave(sequence, 0)
            elif self.waiting.remove(sequence):  # it was preempted with its last token in flight
                self._forget(sequence)

    def _leave(self, sequence: S, findable: int) -> None:
        """Give place and blocks back; the first `findable` blocks may be found again."""
        self.running.remove(sequence)
        sequence.running = False
        self.blocks.release(sequence, sequence.held, findable)
        sequence.held = 0
        self.waiting.left(sequence)

    def _forget(self, sequence: S) -> None:
        """Who has no place gives back the blocks that it has all the same, if any."""
        if sequence.held:
            self.blocks.release(sequence, sequence.held, 0)
        self.blocks.forget(sequence)

    # Who runs goes on (rule 3a).

    def _continue(self, batch: Batch[S]) -> bool:
        """Let all that runs go on; whether somebody was preempted."""
        needs = self._needs.get(self._step, ())
        budget, blocks = self.limits.max_num_batched_tokens - len(self._decoding), len(needs)
        allotted: list[tuple[S, int]] = []
        if self.prefilling:
            allotted = self._allotted(budget)
            blocks += sum(self._lacks(it, it.computed + tokens) for it, tokens in allotted)
        lacks = blocks > 0 and blocks > self.blocks.free
        if not self._in_bulk or budget < 0 or lacks or self.prefilling and not self._prefills_last():
            return self._one_by_one(batch)
        self._advance(batch, needs)
        for sequence, tokens in allotted:
            self._grow(sequence, sequence.computed + tokens)
            self._prefill(sequence, tokens, batch)
        return False

    def _prefills_last(self) -> bool:
        """Whether those with a part of the prompt left were admitted after all others."""
        return self.running[-len(self.prefilling) :] == self.prefilling

    def _allotted(self, budget: int) -> list[tuple[S, int]]:
        """How many tokens each prompt goes on by."""
        allotted = []
        for sequence in self.prefilling:
            tokens = min(sequence.known - sequence.computed, budget, self._limit)
            if tokens > 0:
                budget -= tokens
                allotted.append((sequence, tokens))
        return allotted

    def _lacks(self, sequence: S, tokens: int) -> int:
        return max(0, -(-tokens // self.blocks.block_size) - sequence.held)

    def _grow(self, sequence: S, tokens: int) -> None:
        lacks = self._lacks(sequence, tokens)
        if lacks:
            self.blocks.grow(sequence, lacks)
            sequence.held += lacks

    def _advance(self, batch: Batch[S], needs: Sequence[S]) -> None:
        """A token for all decodes; `needs` are those that need a block for it."""
        step, decoding = self._step, self._decoding
        batch.decodes = decoding
        batch.tokens = batch.sequences = count = len(decoding)
        batch.context = step * count + self._leads
        if needs:
            del self._needs[step]
            grow, note = self.blocks.grow, self._note_need
            for sequence in sorted(needs, key=_place):
                grow(sequence, 1)
                sequence.held += 1
                note(sequence)
        ends = self._ends.pop(step, ())
        for sequence in sorted(ends, key=_place):
            self._end(sequence, batch)
            self._leads -= sequence.lead
        if ends:
            self._decoding = [it for it in decoding if it.decodes]

    def _one_by_one(self, batch: Batch[S]) -> bool:
        """Tokens for all that runs, as budget and blocks allow; whether somebody was preempted for it."""
        self._scatter()
        preempted, place = False, 0
        budget = self.limits.max_num_batched_tokens
        allotted: dict[S, int] = {}
        while budget > 0 and place < len(self.running):
            sequence = self.running[place]
            place += 1
            tokens = 0 if sequence.last else min(self._wanted(sequence), budget, self._limit)
            if tokens <= 0:
                continue
            while sequence.running and self._lacks(sequence, sequence.computed + tokens) > self.blocks.free:
                preempted = True
                victim = self._victim()
                if victim in allotted:  # one of lower priority, admitted earlier
                    budget += allotted.pop(victim)
                    place -= 1
                self._preempt(victim)
            if not sequence.running:
                break
            self._grow(sequence, sequence.computed + tokens)
            allotted[sequence] = tokens
            budget -= tokens
        self._compute(allotted, batch)
        return preempted

    def _wanted(self, sequence: S) -> int:
        wanted = sequence.known - sequence.computed
        if self._speculation is None or not sequence.decodes:
            return wanted
        return wanted + min(self._speculation.drafts, sequence.output_tokens - sequence.written - 1)

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
            extra = 0
            if tokens > 1 and self._speculation is not None:
                extra = self._speculation.accepted(tokens - 1)
                batch.drafts[sequence] = tokens - 1, extra
            sequence.computed += 1 + extra
            sequence.written += 1 + extra
            if sequence.written >= sequence.output_tokens:
                self._end(sequence, batch)
        batch.decodes = decodes

    def _victim(self) -> S:
        """Who loses its blocks: the last of those that run, or the least important."""
        if not self.limits.by_priority:
            return self.running[-1]
        return max(self.running, key=lambda it: (it.priority, it.arrived))

    def _preempt(self, sequence: S) -> None:
        """Back to the front of the line, without blocks; what is in flight for it comes all the same."""
        computed = sequence.computed
        if (
            sequence.decodes and self._under_way
        ):  # the newest token is not known yet, so its block has no hash
            computed = max(computed - 1, min(computed, sequence.prompt_tokens))
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        self._leave(sequence, computed // self.blocks.block_size)
        sequence.computed = 0
        sequence.decodes = False
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.add(sequence)
        sequence.preempted()

    # Who waits is admitted (rule 3b).

    def _admit(self, batch: Batch[S]) -> None:
        limits, blocks, size = self.limits, self.blocks, self.blocks.block_size
        while len(self.running) < limits.max_num_seqs:
            budget = limits.max_num_batched_tokens - batch.tokens
            sequence = self.waiting.head() if budget > 0 else None
            if sequence is None:
                return
            known = sequence.prompt_tokens + sequence.written
            if not sequence.held:
                found = blocks.find(sequence, known)
                if not blocks.fits(sequence, known, found):
                    return
                if sequence.remote:
                    self._fetch(sequence, found)
                    continue
                sequence.computed = found * size + sequence.loaded
            tokens = min(known - sequence.computed, self._limit)
            if tokens > budget and not limits.enable_chunked_prefill:
                return
            tokens = min(tokens, budget)
            self.waiting.pop(sequence)
            if not sequence.held:
                sequence.held = -(-(sequence.computed + tokens) // size)
                blocks.begin(sequence, found, sequence.held - found)
            sequence.running, sequence.place = True, next(self._places)
            self.running.append(sequence)
            self.prefilling.append(sequence)
            batch.admitted.append(sequence)
            self._prefill(sequence, tokens, batch)

    def _fetch(self, sequence: S, found: int) -> None:
        """Give it blocks for its prompt, whose cache is to come; it has no place until then."""
        self.waiting.pop(sequence)
        self.waiting.left(sequence)
        sequence.held = -(-sequence.prompt_tokens // self.blocks.block_size)
        self.blocks.begin(sequence, found, sequence.held - found)
        self.fetching.append(sequence)

    def _prefill(self, sequence: S, tokens: int, batch: Batch[S]) -> None:
        """Computes the next `tokens` of a prompt, which have blocks."""
        batch.tokens += tokens
        batch.sequences += 1
        batch.prefills += 1
        batch.attention += tokens * (sequence.computed + tokens / 2)
        sequence.computed += tokens
        self.blocks.filled(sequence)
        if sequence.computed == sequence.prompt_tokens + sequence.written:
            self.prefilling.remove(sequence)
            batch.prefilled.append(sequence)

    def _sample(self, batch: Batch[S]) -> None:
        """Prompts were computed in the step that was just made: each gets a token."""
        begun = []
        for sequence in batch.prefilled:
            sequence.written += 1
            if sequence.written >= sequence.output_tokens:
                self._end(sequence, batch)
                continue
            sequence.decodes = True
            self._join(sequence)
            begun.append(sequence)
        if begun:
            before = self._decoding
            self._decoding = [*before, *begun]
            if before and before[-1].place > begun[0].place:  # a prompt in small chunks was overtaken
                self._decoding.sort(key=_place)

    def _end(self, sequence: S, batch: Batch[S]) -> None:
        sequence.written = max(sequence.written, sequence.output_tokens)
        sequence.decodes, sequence.last = False, True
        batch.ends.append(sequence)

    # Decodes in bulk (rule 6).

    def _join(self, sequence: S) -> None:
        """From the step that is made next on it advances with the others."""
        sequence.lead = sequence.computed - self._step
        self._leads += sequence.lead
        self._ends.setdefault(sequence.last_step, []).append(sequence)
        self._note_need(sequence)

    def _note_need(self, sequence: S) -> None:
        """Writes down when a decode needs its next block, if it ever does."""
        room = sequence.held * self._block_size
        if room < sequence.prompt_tokens + sequence.output_tokens - 1:  # less than it has in its last step
            step = room - sequence.lead
            if (needs := self._needs.get(step)) is None:
                self._needs[step] = [sequence]
            else:
                needs.append(sequence)

    def _part(self, sequence: S) -> None:
        """It advances with the others no more."""
        self._decoding = [it for it in self._decoding if it is not sequence]
        self._leads -= sequence.lead
        next_need = sequence.held * self.blocks.block_size - sequence.lead
        for calendar, step in ((self._ends, sequence.last_step), (self._needs, next_need)):
            if sequence in (noted := calendar.get(step, [])):
                noted.remove(sequence)

    def _scatter(self) -> None:
        for sequence in self._decoding:
            sequence.computed = self._step + sequence.lead
            sequence.written = sequence.computed - sequence.prompt_tokens + 1
        self._needs.clear()
        self._ends.clear()
        self._leads = 0
        self._singly = True

    def _gather(self) -> None:
        self._singly = False
        self._decoding = [it for it in self.running if it.decodes]
        for sequence in self._decoding:
            self._join(sequence)
