"""Continuous batching as vLLM V1 does it: decides how many tokens each sequence gets in the next
step.

Pure: no clock, no sockets, no randomness. The scheduler owns waiting and running sequences.
`StepLoop` times the steps and their tokens (step model of docs/fidelity.md, rules 3 and 4).

A decode takes one token a step, needs a block every `block_size` steps and ends at a known step.
Decodes can therefore advance in bulk. Two calendars list by step the decodes that need a block, and
the decodes that end. A step costs what changes, not what runs. Sequences are visited one by one
only where blocks run out, or where the budget is too small for all. A property test compares both
ways with a plain version of the rules.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import Generic, TypeVar

from app.engine.core.batch import (
    Batch,
    Blocks,
    LoRASlots,
    S,
    SchedulerLimits,
    SequenceState,
    Speculation,
)

FIRST = -(1 << 128)
"""Offset that sorts before all priorities."""
PRIORITY = 1 << 48
"""Factor of a priority in a sort key: exceeds any arrival number, so priority decides first."""
SLACK = 64
"""Most stale entries in the lines, beyond the number of waiting sequences, before a cleanup."""
PREFILL_SHARE = 0.25
"""Least time of prompts in a step cut by time, as a share of the rest:

smaller parts mostly read weights.
"""

W = TypeVar("W", bound=SequenceState)
_place = attrgetter("place")


class WaitingQueue(Generic[W]):
    """Waiting sequences: first come, first served, or by priority; adapters in memory first.

    A sequence whose adapter is in memory goes before one whose adapter must be loaded. A sequence
    whose adapter cannot be loaded now blocks no other (simulator.md 10.2). A sequence that leaves
    the queue for a slot keeps its adapter in memory until `left`.
    """

    def __init__(self, lora: LoRASlots | None = None, by_priority: bool = False) -> None:
        """Without `lora` no sequence has an adapter."""
        self.lora = LoRASlots(0, lambda adapter: False) if lora is None else lora
        self._by_priority = by_priority
        self._lines: dict[str | None, deque[tuple[int, W]]] = {}
        """Per adapter its line of (sort key, sequence), in order of priority and arrival."""
        self._entries = 0
        """Number of entries in all lines, including those of removed sequences."""
        self.members: set[W] = set()
        self._adapters: dict[W, str] = {}
        """Adapters held by running sequences; an adapter may be unloaded while held."""
        self._arrivals = 0

    def is_ready(self, adapter: str | None) -> bool:
        return adapter is None or self.lora.is_ready(adapter) or self.lora.has_room()

    def add(self, sequence: W, first: bool = False) -> None:
        """Queues a sequence, a former member at its old place; `first` puts it before all others."""
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
        line = self._lines.get(sequence.adapter)
        if line is None:
            line = self._lines[sequence.adapter] = deque()
        if not line or place > line[-1][0]:  # as nearly always
            line.append((place, sequence))
        elif place < line[0][0]:
            line.appendleft((place, sequence))
        else:
            insort(line, (place, sequence))

    def sort(self, by_priority: bool) -> None:
        """Puts the waiting sequences in the order of another policy, but those before all others."""
        if by_priority != self._by_priority:
            self._by_priority = by_priority
            firsts = {
                it for line in self._lines.values() for place, it in line if place < FIRST // 2
            }
            self._lines, self._entries = {}, 0
            for sequence in sorted(self.members, key=lambda it: it.arrived):
                self.add(sequence, sequence in firsts)

    def remove(self, sequence: W) -> bool:
        """Removes a sequence; returns False if the sequence is not waiting."""
        if sequence not in self.members:
            return False
        self.members.remove(sequence)
        self._clear()
        return True

    def head(self) -> W | None:
        """Returns the next sequence; None if none may start."""
        members = self.members
        if not members:
            return None
        if len(self._lines) == 1 and (line := self._lines.get(None)):  # as nearly always
            if line[0][1] not in members:
                line = self._live(None)
            return line[0][1]
        heads = [line[0] for adapter in list(self._lines) if (line := self._live(adapter))]
        room = self.lora.has_room()
        ready = [
            it for it in heads if self.lora.is_ready(it[1].adapter) or room and it[0] < FIRST // 2
        ]
        if not ready and room:
            ready = heads
        return min(ready)[1] if ready else None

    def pop(self, sequence: W) -> None:
        """Takes out the `head`, which has a slot now."""
        self._lines[sequence.adapter].popleft()
        self._entries -= 1
        self.members.remove(sequence)
        if self._entries > SLACK:
            self._clear()
        if sequence.adapter is not None:
            self.hold(sequence)

    def hold(self, sequence: W) -> None:
        """Keeps in memory the adapter of a sequence that got a slot."""
        adapter = sequence.adapter
        if adapter is not None and self.lora.enter(adapter):
            self._adapters[sequence] = adapter

    def left(self, sequence: W) -> None:
        if self._adapters and (adapter := self._adapters.pop(sequence, None)) is not None:
            self.lora.leave(adapter)

    def _clear(self) -> None:
        """Drops stale entries before they outnumber the waiting sequences."""
        if self._entries <= 2 * len(self.members) + SLACK:
            return
        for adapter, line in self._lines.items():
            self._lines[adapter] = deque(entry for entry in line if entry[1] in self.members)
        self._entries = sum(map(len, self._lines.values()))

    def _live(self, adapter: str | None) -> deque[tuple[int, W]]:
        line = self._lines[adapter]
        while line and line[0][1] not in self.members:
            line.popleft()
            self._entries -= 1
        if not line:
            del self._lines[adapter]
        return line


class Scheduler(Generic[S]):
    """Makes one batch after another. `blocks` must have room for the longest sequence."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[S],
        waiting: WaitingQueue[S] | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self._block_size = blocks.block_size
        self.waiting: WaitingQueue[S] = waiting or WaitingQueue()
        self.running: list[S] = []
        """Running sequences in order of admission, including sequences whose last token is in
        flight.
        """
        self.fetching: list[S] = []
        """Sequences that wait for the cache of a remote prefill, and hold its blocks; the latest is
        last.
        """
        self.preemptions = 0
        self.paused = False
        """True while no sequence is admitted."""
        self.watch_preempted: Callable[[S, S], None] | None = None
        """Receives each preempted sequence, and the one that needed its blocks."""
        self._speculation = speculation
        self._in_bulk = speculation is None
        self._limit = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self.prefill_limit: Callable[[], int] | None = None
        """Returns the most prompt tokens of the next step; None: only `limits` hold."""
        self._prefill_left = 0
        """Prompt tokens that the step being made may still get."""
        self._places = count()
        self._step = 0
        self._under_way = 0
        """Number of steps made whose tokens are not ready."""
        self.prefilling: list[S] = []
        """Running sequences with unfinished prompts, in order of admission."""
        self._decoding: list[S] = []
        """Decodes in order of admission; the list is replaced, never changed, so batches can keep
        it.
        """
        self._leads = 0
        """Sum of `lead` over the decodes."""
        self._needs: dict[int, list[S]] = {}
        """Decodes that need a block, by step."""
        self._ends: dict[int, list[S]] = {}
        """Decodes that get their last token, by step."""
        self._singly = False
        """True while decodes are visited one by one and the calendars are empty."""

    @property
    def idle(self) -> bool:
        return not self.running and not self.fetching and (self.paused or not self.waiting.members)

    @property
    def decoding(self) -> tuple[int, int]:
        """The decodes of the next step, and the tokens computed before it, summed over them."""
        count = len(self._decoding)
        return count, self._step * count + self._leads

    def remove(self, sequence: S) -> bool:
        """Removes a sequence, and drops its tokens in flight; returns False after its end."""
        if sequence.running:
            if sequence.decodes:  # takes it out of the bulk
                self._decoding = [it for it in self._decoding if it is not sequence]
                self._part(sequence)
            elif sequence in self.prefilling:
                self.prefilling.remove(sequence)
            self._leave(sequence, 0)
            return True
        if sequence in self.fetching:
            self.fetching.remove(sequence)
        elif not self.waiting.remove(sequence):
            return False
        self._forget(sequence)
        return True

    def fetched(self, sequence: S) -> None:
        """Queues a sequence whose prompt cache has arrived; only the last prompt token remains to
        compute.
        """
        if sequence in self.fetching:
            self.fetching.remove(sequence)
            sequence.computed, sequence.remote = sequence.prompt_tokens - 1, False
            self.blocks.filled(sequence)
            # The sequence holds blocks that sequences before it may need.
            self.waiting.add(sequence, first=True)

    def schedule(self) -> Batch[S] | None:
        """Returns the next step; None if there is nothing to compute."""
        if not (self._decoding or self.prefilling or self.waiting.members):
            return None
        batch: Batch[S] = Batch()
        limit = self.prefill_limit
        self._prefill_left = self.limits.max_num_batched_tokens if limit is None else limit()
        preempted = bool(self.running) and self._continue(batch)
        if not preempted and not self.paused and self.waiting.members:
            self._admit(batch)
        if batch.tokens:
            self._step += 1
            self._under_way += 1
        if self._singly:
            self._singly = False
            self._decoding = [it for it in self.running if it.decodes]
            for sequence in self._decoding:
                self._join(sequence)
        if batch.prefilled:
            self._sample(batch)
        if batch.tokens:
            return batch
        return self.schedule() if preempted and not self._under_way else None

    def complete(self, batch: Batch[S]) -> None:
        """Ends `batch`, the oldest step under way; sequences with their last token leave."""
        self._under_way -= 1
        for sequence in batch.ends:
            if sequence.running:
                self._leave(sequence, 0, keep=sequence.remote_decode)
            elif self.waiting.remove(sequence):  # preempted with its last token in flight
                self._forget(sequence)

    def accept(self, sequence: S, drafts: int) -> None:
        """Notes the right drafts of a decode; their step is the newest one, and has just shown
        them.
        """
        self._part(sequence)
        sequence.computed = self._step + sequence.lead + drafts
        self._join(sequence)

    def release(self, sequence: S) -> None:
        """Frees the blocks of a sequence that has left, and kept them for a remote decode."""
        if sequence.held:
            self.blocks.release(sequence, sequence.held, 0)
            sequence.held = 0

    def _leave(self, sequence: S, findable: int, keep: bool = False) -> None:
        self.running.remove(sequence)
        sequence.running = sequence.decodes = False
        if not keep:
            self.blocks.release(sequence, sequence.held, findable)
            sequence.held = 0
        if sequence.adapter is not None:
            self.waiting.left(sequence)

    def _forget(self, sequence: S) -> None:
        if sequence.held:
            self.blocks.release(sequence, sequence.held, 0)
        self.blocks.forget(sequence)

    def _continue(self, batch: Batch[S]) -> bool:
        """Continues all running sequences (rule 3a); returns whether one was preempted."""
        needs = self._needs.get(self._step, ())
        budget, blocks = self.limits.max_num_batched_tokens - len(self._decoding), len(needs)
        allotted: list[tuple[S, int]] = []
        """Unfinished prompts, each with the tokens that it computes next."""
        left = min(budget, self._prefill_left)
        for sequence in self.prefilling:
            unknown = sequence.prompt_tokens + sequence.written - sequence.computed
            tokens = min(unknown, left, self._limit)
            if tokens > 0:
                left -= tokens
                allotted.append((sequence, tokens))
                blocks += self._lacks(sequence, sequence.computed + tokens)
        lacks = blocks > 0 and blocks > self.blocks.free
        prefills_last = self.running[len(self.running) - len(self.prefilling) :] == self.prefilling
        if not self._in_bulk or budget < 0 or lacks or not prefills_last:
            return self._one_by_one(batch)
        self._advance(batch, needs)
        for sequence, tokens in allotted:
            self._grow(sequence, sequence.computed + tokens)
            self._prefill(sequence, tokens, batch)
        return False

    def _lacks(self, sequence: S, tokens: int) -> int:
        return max(0, -(-tokens // self._block_size) - sequence.held)

    def _grow(self, sequence: S, tokens: int) -> None:
        if lacks := self._lacks(sequence, tokens):
            self.blocks.grow(sequence, lacks)
            sequence.held += lacks

    def _advance(self, batch: Batch[S], needs: Sequence[S]) -> None:
        """Gives every decode a token; those in `needs` require a block for it."""
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
        """Gives running sequences tokens as budget and blocks allow; returns whether one was
        preempted.
        """
        for decode in self._decoding:  # ends the bulk
            decode.computed = self._step + decode.lead
            decode.written = decode.computed - decode.prompt_tokens + 1
        self._needs.clear()
        self._ends.clear()
        self._leads = 0
        self._singly = True
        preempted, place = False, 0
        budget, prefill_left = self.limits.max_num_batched_tokens, self._prefill_left
        allotted: dict[S, int] = {}
        while budget > 0 and place < len(self.running):
            sequence = self.running[place]
            place += 1
            wanted = sequence.prompt_tokens + sequence.written - sequence.computed
            if self._speculation is not None and sequence.decodes:
                left = sequence.output_tokens - sequence.written - 1
                wanted += self._speculation.propose(sequence, left)
            tokens = 0 if sequence.last else min(wanted, budget, self._limit)
            if not sequence.decodes:
                tokens = min(tokens, prefill_left)
            if tokens <= 0:
                continue
            while (
                sequence.running
                and self._lacks(sequence, sequence.computed + tokens) > self.blocks.free
            ):
                preempted = True
                victim = self.running[-1]
                if self.limits.by_priority:
                    victim = max(self.running, key=lambda it: (it.priority, it.arrived))
                if victim in allotted:  # lower priority, but admitted earlier
                    freed = allotted.pop(victim)
                    budget += freed
                    prefill_left += 0 if victim.decodes else freed
                    place -= 1
                self._preempt(victim, sequence)
            if not sequence.running:
                break
            self._grow(sequence, sequence.computed + tokens)
            allotted[sequence] = tokens
            budget -= tokens
            if not sequence.decodes:
                prefill_left -= tokens
        self._compute(allotted, batch)
        return preempted

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

    def _preempt(self, sequence: S, by: S) -> None:
        """Frees the blocks of a sequence for another, and queues it; tokens in flight still arrive."""
        computed = sequence.computed
        if (
            sequence.decodes and self._under_way
        ):  # the newest token is in flight: its block has no hash
            computed = max(computed - 1, min(computed, sequence.prompt_tokens))
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        self._leave(sequence, computed // self._block_size)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.add(sequence)
        sequence.preempted()
        if self.watch_preempted is not None:
            self.watch_preempted(sequence, by)

    def _admit(self, batch: Batch[S]) -> None:
        """Admits waiting sequences (rule 3b)."""
        limits, blocks, size = self.limits, self.blocks, self._block_size
        while self.waiting.members and len(self.running) < limits.max_num_seqs:
            budget = min(limits.max_num_batched_tokens - batch.tokens, self._prefill_left)
            sequence = self.waiting.head() if budget > 0 else None
            if sequence is None:
                return
            known, fetched = sequence.prompt_tokens + sequence.written, sequence.held > 0
            if not fetched:
                found = blocks.find(sequence, known)
                if not blocks.fits(sequence, known, found):
                    return
                sequence.computed = found * size + sequence.loaded
                if sequence.remote:  # its cache will arrive; until then it has blocks but no place
                    self.waiting.pop(sequence)
                    self.waiting.left(sequence)
                    sequence.held = -(-sequence.prompt_tokens // size)
                    blocks.begin(sequence, found, sequence.held - found)
                    self.fetching.append(sequence)
                    continue
            tokens = min(known - sequence.computed, self._limit)
            if tokens > budget and not limits.enable_chunked_prefill:
                return
            tokens = min(tokens, budget)
            self.waiting.pop(sequence)
            if not fetched:
                sequence.held = -(-(sequence.computed + tokens) // size)
                blocks.begin(sequence, found, sequence.held - found)
            sequence.running, sequence.place = True, next(self._places)
            self.running.append(sequence)
            self.prefilling.append(sequence)
            batch.admitted.append(sequence)
            self._prefill(sequence, tokens, batch, fetched)

    def _prefill(self, sequence: S, tokens: int, batch: Batch[S], fetched: bool = False) -> None:
        """Computes the next `tokens` of a prompt; blocks are assigned already."""
        batch.tokens += tokens
        batch.sequences += 1
        self._prefill_left -= tokens
        if fetched:  # its last token alone, which costs what a decode costs
            batch.context += sequence.computed
        else:
            batch.prefills += 1
            batch.attention += tokens * (sequence.computed + tokens / 2)
        sequence.computed += tokens
        self.blocks.filled(sequence)
        if sequence.computed == sequence.prompt_tokens + sequence.written:
            self.prefilling.remove(sequence)
            batch.prefilled.append(sequence)

    def _sample(self, batch: Batch[S]) -> None:
        """Samples a token for each prompt that the new step completes."""
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
            before, self._decoding = self._decoding, [*self._decoding, *begun]
            if (
                before and before[-1].place > begun[0].place
            ):  # a prompt in small chunks was overtaken
                self._decoding.sort(key=_place)

    def _end(self, sequence: S, batch: Batch[S]) -> None:
        sequence.written = max(sequence.written, sequence.output_tokens)
        sequence.decodes, sequence.last = False, True
        batch.ends.append(sequence)

    def _join(self, sequence: S) -> None:
        """Lets a decode advance in bulk (rule 6) from the next step on."""
        sequence.lead = sequence.computed - self._step
        self._leads += sequence.lead
        last_step = sequence.prompt_tokens + sequence.output_tokens - 2 - sequence.lead
        self._ends.setdefault(last_step, []).append(sequence)
        self._note_need(sequence)

    def _part(self, sequence: S) -> None:
        """Takes a decode out of the bulk's calendars."""
        self._leads -= sequence.lead
        need = sequence.held * self._block_size - sequence.lead
        last = sequence.prompt_tokens + sequence.output_tokens - 2 - sequence.lead
        for noted in (self._ends.get(last, []), self._needs.get(need, [])):
            if sequence in noted:
                noted.remove(sequence)

    def _note_need(self, sequence: S) -> None:
        """Enters a decode's next need of a block into the calendar."""
        room = sequence.held * self._block_size
        if (
            room < sequence.prompt_tokens + sequence.output_tokens - 1
        ):  # fewer tokens than in its last step
            self._needs.setdefault(room - sequence.lead, []).append(sequence)
