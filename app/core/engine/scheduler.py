"""Continuous batching as in vLLM V1: how many tokens each sequence gets in the next step.

Pure: no clock, no sockets, no randomness. The scheduler owns waiting and running sequences.
`StepLoop` times the steps and their tokens (step model of docs/how-timing-works.md, rules 3 and 4).

A decode takes one token a step, needs a block every `block_size` steps and ends at a known step.
Decodes can therefore advance in bulk. Two calendars list by step the decodes that need a block, and
the decodes that end. A step costs what changes, not what runs. Sequences are visited one by one
only where blocks run out, or where the budget is too small for all. A property test compares both
ways with a plain version of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from operator import attrgetter
from typing import Generic

from msgspec.structs import replace

from app.core.engine.batch import (
    Batch,
    Blocks,
    Drafted,
    S,
    SchedulerLimits,
    SequenceState,
    Speculation,
)
from app.core.engine.decode_calendar import DecodeCalendar
from app.core.engine.deferred_frees import DeferredFrees
from app.core.engine.prefill_spacing import PrefillSpacing
from app.core.engine.transfers import Transfers
from app.core.engine.waiting_queue import WaitingQueue

PREFILL_SHARE = 0.25
"""Minimum time of prompts in a step cut by time, as a share of the other work in the step.

Smaller parts mostly read weights.
"""
_place = attrgetter("place")


def _with_reserved_slots(limits: SchedulerLimits) -> SchedulerLimits:
    """Returns the limits of versions that take the slots of all drafts from a step in advance."""
    reserved = limits.draft_slots * limits.max_num_seqs
    tokens = max(1, limits.max_num_batched_tokens - reserved)
    return replace(limits, max_num_batched_tokens=tokens, draft_slots=0)


def _preemption_order(sequence: SequenceState) -> tuple[int, int]:
    """Returns a key that is greatest for the next victim; choices of a request arrive together."""
    return sequence.priority, sequence.arrived - sequence.choice


class Scheduler(Generic[S]):
    """Makes one batch after another. `blocks` must have room for the longest sequence."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[S],
        waiting: WaitingQueue[S] | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        if not limits.rules.counts_draft_slots:
            limits = _with_reserved_slots(limits)
        self.limits = limits
        self.blocks = blocks
        self._block_size = blocks.block_size
        self._max_tokens = blocks.capacity * blocks.block_size
        self.waiting: WaitingQueue[S] = waiting or WaitingQueue()
        self.running: list[S] = []
        """Running sequences in order of admission, including sequences whose last token is in
        flight.
        """
        self._frees: DeferredFrees[S] | None = DeferredFrees() if limits.defers_frees else None
        self.preemptions = 0
        self.paused = False
        """True while no sequence is admitted."""
        self.held = False
        """True while nothing is computed."""
        self.watch_preempted: Callable[[S, S], None] | None = None
        """Receives each preempted sequence, and the one that needed its blocks."""
        self.on_fetch: Callable[[S], None] | None = None
        """Called with each sequence that enters `fetching`."""
        self._speculation = speculation
        self._groups = blocks.groups
        self._offloads = blocks.offloads
        self._latest: Batch[S] = Batch()
        """The latest step."""
        self.has_passed = False
        """True if the latest step passed over a sequence that waits for a transfer."""
        self._in_bulk = speculation is None and self._groups is None
        self._draft_slots = 0 if speculation is None else limits.draft_slots
        self._lookahead = 0 if speculation is None else limits.lookahead
        draft_tokens = 0 if speculation is None else 1 + speculation.padding + limits.lookahead
        self._transfers = Transfers(blocks, self.waiting, draft_tokens, limits.rules)
        self.fetching = self._transfers.fetching
        """Sequences that wait for the cache of a remote prefill or of a store, and hold blocks."""
        self._prompt_limit = limits.max_num_batched_tokens
        """Maximum tokens of one prompt in the step being made."""
        num_blocks = blocks.capacity + 1
        if self._groups is not None:
            num_blocks = self._groups.num_blocks
        self._watermark = int(limits.watermark * num_blocks)
        """Blocks that an admission leaves free while others run."""
        interval = limits.prefill_schedule_interval
        self._spacing: PrefillSpacing[S] | None = None
        if limits.rules.spaces_prefill and interval > 1:
            self._spacing = PrefillSpacing(interval, self.waiting)
        self._varies = self._spacing is not None or limits.long_prefill_token_threshold > 0
        self._varies |= self._groups is not None or limits.defers_frees
        self._varies |= self._offloads is not None or speculation is not None
        """True if the limits of a step depend on earlier steps or on the sequences."""
        self._holds_prefill = False
        """True if the step being made has no prefill."""
        self._has_prefill = False
        """True if the step being made has prefill."""
        self.prefill_limit: Callable[[], int] | None = None
        """Returns the maximum prompt tokens of the next step; None: only `limits` hold."""
        self._prefill_left = 0
        """Prompt tokens that the step being made may still get."""
        self._places = count()
        self._step = 0
        self._under_way = 0
        """Number of steps made whose tokens are not ready."""
        self.prefilling: list[S] = []
        """Running sequences with unfinished prompts, in order of admission."""
        self._decoding: list[S] = []
        """Decodes in order of admission.

        The list is replaced, never changed, so batches can keep it.
        """
        self._leads = 0
        """Sum of `lead` over the decodes."""
        self._calendar: DecodeCalendar[S] = DecodeCalendar(blocks)
        self._singly = False
        """True while decodes are visited one by one and the calendars are empty."""

    @property
    def idle(self) -> bool:
        """True if no step can be made until something arrives or resumes."""
        is_empty = not self.waiting.members or (self.paused and not self._resumes_in_pause())
        return self.held or (is_empty and not self.running and not self.fetching)

    @property
    def decoding(self) -> tuple[int, int]:
        """The decodes of the next step, and the tokens computed before it, summed over them."""
        decodes = len(self._decoding)
        return decodes, self._step * decodes + self._leads

    def steps_before_end(self) -> int:
        """Returns how many steps can be made before one that may give a decode its last token."""
        return self._calendar.steps_before_end(self._step) if self._in_bulk else 0

    def remove(self, sequence: S) -> bool:
        """Removes a sequence, and drops its tokens in flight; returns False after its end."""
        if sequence.running:
            if sequence.decodes:
                self._stop_decode(sequence)
            elif sequence in self.prefilling:
                self.prefilling.remove(sequence)
            self._finish(sequence)
            return True
        if self._transfers.abandon(sequence):
            return True
        if not self.waiting.remove(sequence):
            return False
        self._forget(sequence)
        return True

    def fetched(self, sequence: S, tokens: int | None = None, *, looks_again: bool = True) -> None:
        """Queues a sequence whose prompt cache, or a loaded part, has arrived.

        `tokens` is the number of first tokens whose cache is there; None if nothing was lost. If
        everything was lost, the prompt is looked up again, unless `looks_again` is false. The
        blocks of a sequence that was removed meanwhile are free now.
        """
        if not self._transfers.end(sequence, tokens, looks_again):
            self._forget(sequence)
        elif self._spacing is not None:
            self._spacing.defer(sequence)

    def schedule(self) -> Batch[S] | None:
        """Returns the next step; None if there is nothing to compute."""
        has_sequences = self._decoding or self.prefilling or self.waiting.members
        if self.held or not has_sequences:
            self._skip_step()
            return None
        batch: Batch[S] = Batch()
        self._prefill_left = self.limits.max_num_batched_tokens
        if self._varies or self.prefill_limit is not None:
            self._begin_step()
        has_preempted = bool(self.running) and self._continue(batch)
        runs_out = True
        may_admit = not self.paused or self._transfers.holding
        if not has_preempted and may_admit and self.waiting.members:
            runs_out = self._admit(batch)
        if batch.tokens:
            self._step += 1
            self._under_way += 1
            self._latest = batch
        if self._singly:
            self._begin_bulk()
        if batch.prefilled:
            self._sample(batch)
        if self._varies or self.waiting.adapters:
            self._end_step(batch, has_preempted, runs_out)
        if batch.tokens:
            return batch
        if has_preempted and not self._under_way:
            return self.schedule()
        return None

    def complete(self, batch: Batch[S]) -> None:
        """Ends `batch`, the oldest step under way; sequences with their last token leave."""
        self._under_way -= 1
        if self._frees is not None:
            for left, held in self._frees.due(self._step - self._under_way):
                if self._groups is not None:
                    self._groups.release_together(left)
                else:
                    self.blocks.release(left, held, 0)
        if batch.drafts:
            for sequence, drafted in batch.drafts.items():
                sequence.rejected -= drafted.drafts - drafted.delivered
        for sequence in batch.ends:
            if sequence.running:
                if sequence.decodes:  # no step computed the token after a stop
                    self._stop_decode(sequence)
                self._finish(sequence, keeps_blocks=sequence.remote_decode)
            elif self.waiting.remove(sequence):  # preempted with its last token in flight
                self._forget(sequence)

    def preempt_all(self, under_way: Iterable[Batch[S]]) -> None:
        """Preempts all running sequences, as vLLM does before it empties the prefix cache.

        The tokens of `under_way`, the oldest step first, are dropped and computed again.
        """
        if not self._singly:
            self._end_bulk()
        for batch in reversed(list(under_way)):
            batch.take_back()
        for sequence in reversed(list(self.running)):
            self._preempt(sequence, sequence)
        self._decoding = []
        self._singly = False

    def accept(self, sequence: S, drafts: int) -> None:
        """Notes the right drafts of a decode, which the newest step has just shown."""
        self._leave_bulk(sequence)
        sequence.computed = self._step + sequence.lead + drafts
        self._join_bulk(sequence)

    def release(self, sequence: S) -> None:
        """Frees the blocks of a sequence that has left, and kept them for a remote decode."""
        if sequence.held:
            self.blocks.release(sequence, sequence.held, 0)
            sequence.held = 0

    def _stop_decode(self, sequence: S) -> None:
        self._decoding = [decode for decode in self._decoding if decode is not sequence]
        self._leave_bulk(sequence)

    def _finish(self, sequence: S, keeps_blocks: bool = False) -> None:
        """Takes a sequence that has ended out of the running ones."""
        if self._groups is not None:
            self._groups.finish(sequence, self._step, self._under_way)
        if self._offloads is not None:
            self._offloads.finish(sequence)
        self._leave(sequence, 0, keeps_blocks)

    def _leave(self, sequence: S, findable: int, keeps_blocks: bool = False) -> None:
        """Takes a sequence out of the running ones; it may find `findable` blocks again."""
        self.running.remove(sequence)
        sequence.running = False
        sequence.decodes = False
        if not keeps_blocks:
            if self._frees is not None and self._is_computing(sequence):
                self._frees.keep(sequence, sequence.held, self._step - 1)
            else:
                self.blocks.release(sequence, sequence.held, findable)
            sequence.held = 0
        if self._frees is not None:
            self._frees.forget(sequence)
        if sequence.lora is not None:
            self.waiting.left(sequence)

    def _is_computing(self, sequence: S) -> bool:
        """Returns whether a free of the sequence's blocks waits for a step under way."""
        frees = self._frees
        return frees is not None and frees.is_computing(sequence, self._step - self._under_way)

    def _forget(self, sequence: S) -> None:
        self._transfers.holding.pop(sequence, None)
        if self._offloads is not None:
            self._offloads.finish(sequence)
        self.release(sequence)
        self.blocks.forget(sequence)

    def _begin_step(self) -> None:
        """Sets the limits of the new step, where they vary from step to step."""
        self._transfers.resumed.clear()
        limits = self.limits
        if self._groups is not None:
            self._groups.begin_step()
        if self.prefill_limit is not None:
            self._prefill_left = self.prefill_limit()
        if limits.long_prefill_token_threshold:
            self._limit_prompts(limits.long_prefill_token_threshold)
        if self._spacing is not None:
            has_decodes = len(self.running) > len(self.prefilling)
            self._holds_prefill = self._spacing.holds_prefill(self._step, has_decodes)
            self._has_prefill = False

    def _limit_prompts(self, threshold: int) -> None:
        """Sets the maximum tokens of one prompt; a prompt that is alone has no limit."""
        budget = self.limits.max_num_batched_tokens
        sequences = len(self.running) + len(self.waiting.members) + len(self.fetching)
        if self.limits.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, budget // sequences)
        is_limited = sequences > 1 or not self.limits.rules.exempts_lone_prompt
        self._prompt_limit = threshold if is_limited else budget

    def _skip_step(self) -> None:
        """Notes that no step is made: nothing waits or runs, or nothing is computed for a time."""
        if self._spacing is not None:
            self._spacing.skip_step(self.held)
        if self._offloads is not None:
            self._offloads.end_step(Batch())

    def _end_step(self, batch: Batch[S], has_preempted: bool, runs_out: bool) -> None:
        """Notes what later steps depend on."""
        if self._offloads is not None:
            self.has_passed = self.waiting.end_passes()
        if self._frees is not None:
            self._frees.note(batch.decodes, self._step - 1)
        if self._offloads is not None:
            self._offloads.end_step(batch)
        if self._spacing is not None:
            self._spacing.end_step(
                batch,
                self._step,
                has_prefill=self._has_prefill,
                has_preempted=has_preempted,
                runs_out=runs_out,
            )
        if not self.limits.rules.forgets_passes:
            self.waiting.note_pass(runs_out)
        if not self.limits.rules.holds_last_adapters:
            for sequence in batch.ends:
                if not sequence.decodes:
                    self.waiting.left(sequence)

    def _continue(self, batch: Batch[S]) -> bool:
        """Continues all running sequences (rule 3a); returns whether one was preempted."""
        needs = self._calendar.needs.get(self._step, ())
        budget = self.limits.max_num_batched_tokens - len(self._decoding)
        blocks = len(needs)
        allotted: Sequence[tuple[S, int]] = ()
        prefills_last = True
        if self.prefilling:
            allotted = self._allot(budget)
            for sequence, tokens in allotted:
                blocks += self._missing_blocks(sequence, sequence.computed + tokens)
            start = len(self.running) - len(self.prefilling)
            prefills_last = self.running[start:] == self.prefilling
        lacks_blocks = blocks > 0 and blocks > self.blocks.free
        if not self._in_bulk or budget < 0 or lacks_blocks or not prefills_last:
            return self._continue_singly(batch)
        self._advance(batch, needs)
        self._has_prefill = bool(allotted)
        for sequence, tokens in allotted:
            self._grow(sequence, sequence.computed + tokens)
            self._prefill(sequence, tokens, batch)
        return False

    def _allot(self, budget: int) -> list[tuple[S, int]]:
        """Returns unfinished prompts, each with the tokens that it computes next."""
        allotted: list[tuple[S, int]] = []
        left = min(budget, self._prefill_left)
        if self._holds_prefill:
            left = 0
        for sequence in self.prefilling:
            remaining = sequence.prompt_tokens + sequence.written - sequence.computed
            tokens = min(remaining, left, self._prompt_limit)
            if tokens > 0:
                left -= tokens
                allotted.append((sequence, tokens))
        return allotted

    def _missing_blocks(self, sequence: S, tokens: int) -> int:
        return max(0, -(-tokens // self._block_size) - sequence.held)

    def _lacks_blocks(self, sequence: S, tokens: int) -> bool:
        """Returns whether too few blocks are free for the first `tokens` tokens."""
        if self._groups is not None:
            return self._groups.lacks(sequence, tokens)
        return self._missing_blocks(sequence, tokens) > self.blocks.free

    def _grow(self, sequence: S, tokens: int) -> None:
        missing = self._missing_blocks(sequence, tokens)
        if missing:
            self.blocks.grow(sequence, missing)
            sequence.held += missing
        if self._groups is not None:
            self._groups.cache_known(sequence, tokens)

    def _advance(self, batch: Batch[S], needs: Sequence[S]) -> None:
        """Gives every decode a token; those in `needs` require a block for it."""
        step = self._step
        decoding = self._decoding
        decodes = len(decoding)
        batch.decodes = decoding
        batch.tokens = decodes
        batch.sequences = decodes
        batch.context = step * decodes + self._leads
        if needs:
            self._calendar.assign(step)
        ends = self._calendar.ends.pop(step, None)
        if ends:
            for sequence in sorted(ends, key=_place):
                self._end(sequence, batch)
                if sequence.decodes:
                    self._calendar.ends.setdefault(step + 1, []).append(sequence)
                else:
                    self._leads -= sequence.lead
            self._decoding = [sequence for sequence in decoding if sequence.decodes]

    def _continue_singly(self, batch: Batch[S]) -> bool:
        """Gives running sequences tokens as budget and blocks allow.

        Returns whether one was preempted.
        """
        self._end_bulk()
        preemptions = self.preemptions
        draft_slots = self._draft_slots
        speculates = self._speculation is not None
        budget = self.limits.max_num_batched_tokens - draft_slots
        prefill_left = self._prefill_left
        allotted: dict[S, int] = {}
        for sequence in list(self.running):
            if budget <= 0 or not sequence.running:  # preempted in this step
                continue
            limit = budget if sequence.decodes else min(budget, prefill_left)
            tokens = self._wanted(sequence, limit)
            if tokens <= 0:
                continue
            slots = self._slots(sequence, tokens) if speculates else sequence.computed + tokens
            if self._missing_blocks(sequence, slots) and self._lacks_blocks(sequence, slots):
                for freed, is_decode in self._make_room(sequence, slots, allotted):
                    budget += freed + draft_slots
                    if not is_decode:
                        prefill_left += freed
                if not sequence.running and self.limits.rules.passes_self_preempted:
                    continue
                if not sequence.running or self._lacks_blocks(sequence, slots):
                    break
            self._grow(sequence, slots)
            allotted[sequence] = tokens
            budget -= tokens + draft_slots
            if not sequence.decodes:
                prefill_left -= tokens
        self._compute(allotted, batch)
        return self.preemptions > preemptions

    def _wanted(self, sequence: S, limit: int) -> int:
        """Returns the tokens of a running sequence in the new step, with its drafts.

        Only the free blocks may prevent them.
        """
        if not sequence.decodes and (sequence.last or self._holds_prefill):
            return 0
        wanted = sequence.prompt_tokens + sequence.written - sequence.computed
        if self._speculation is not None and sequence.decodes:
            draft_limit = max(0, sequence.output_tokens - sequence.written - 1)
            wanted += self._speculation.propose(sequence, draft_limit)
            wanted = min(wanted, self._max_tokens - sequence.computed - sequence.rejected)
        wanted = min(wanted, self._prompt_limit, limit)
        if self._groups is not None and wanted > 0:
            wanted = self._groups.clip(sequence, sequence.computed, wanted)
            if wanted:
                self._groups.trim(sequence, self._step, self._under_way)
        return wanted

    def _slots(self, sequence: S, tokens: int) -> int:
        """Returns the tokens for which a sequence needs blocks to compute `tokens` more."""
        slots = sequence.computed + sequence.rejected + tokens + self._lookahead
        return min(slots, self._max_tokens)

    def _make_room(
        self, sequence: S, tokens: int, allotted: dict[S, int]
    ) -> list[tuple[int, bool]]:
        """Preempts sequences until `sequence` has blocks for `tokens`, or is preempted itself.

        A victim whose blocks cannot be freed yet ends this. Removes the victims from `allotted`,
        where they have a lower priority but were admitted earlier. Returns the tokens that each of
        these had, and whether it was a decode.
        """
        freed = []
        has_room = False
        while not has_room:
            victim = self.running[-1]
            if self.limits.by_priority:
                victim = max(self.running, key=_preemption_order)
            if self.limits.rules.keeps_deferred_victims and self._is_computing(victim):
                break
            if victim in allotted:
                freed.append((allotted.pop(victim), victim.decodes))
            self._preempt(victim, sequence)
            has_room = not sequence.running or not self._lacks_blocks(sequence, tokens)
        return freed

    def _compute(self, allotted: dict[S, int], batch: Batch[S]) -> None:
        decodes = []
        for sequence, tokens in allotted.items():
            if not sequence.decodes:
                self._has_prefill = True
                self._prefill(sequence, tokens, batch)
                continue
            decodes.append(sequence)
            batch.tokens += tokens
            batch.sequences += 1
            batch.context += sequence.computed
            delivered = 0
            if tokens > 1 and self._speculation is not None:
                accepted = self._speculation.accepted(sequence, tokens - 1)
                delivered = min(accepted, max(0, sequence.output_tokens - sequence.written - 1))
                batch.drafts[sequence] = Drafted(tokens - 1, accepted, delivered=delivered)
                sequence.rejected += tokens - 1 - delivered
            sequence.computed += 1 + delivered
            sequence.written += 1 + delivered
            if sequence.written >= sequence.output_tokens:
                self._end(sequence, batch, is_foreseen=not delivered)
        batch.decodes = decodes

    def _preempt(self, victim: S, needy: S) -> None:
        """Frees the blocks of `victim` for `needy`, and queues it.

        Tokens in flight still arrive, unless a connector other than a tier may send the blocks.
        """
        if self._offloads is None and self._is_computing(victim):
            self._latest.drop(victim)
        computed = victim.computed
        if victim.decodes and self._under_way:
            # The newest token is in flight: its block has no hash.
            computed = max(computed - 1, min(computed, victim.prompt_tokens))
        elif victim in self.prefilling:
            self.prefilling.remove(victim)
        self._leave(victim, computed // self._block_size)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.add_preempted(victim)
        victim.preempted()
        if self.watch_preempted is not None:
            self.watch_preempted(victim, needy)

    def _admit(self, batch: Batch[S]) -> bool:
        """Admits waiting sequences (rule 3b).

        Returns whether no place or no token is left for the next one.
        """
        limits = self.limits
        earlier_prefills = batch.prefills
        max_running = limits.max_running
        while self.waiting.members and len(self.running) < max_running:
            left = limits.max_num_batched_tokens - batch.tokens
            left -= self._draft_slots * (batch.sequences + 1)
            budget = min(left, self._prefill_left)
            if budget <= 0:
                return True
            sequence = self._next()
            if sequence is None:
                return False
            spare = self._watermark if self.running else 0
            cached = self._look_up(sequence, spare)
            if cached is None:
                if self._pass_over(sequence):
                    continue
                return False
            if sequence.remote and not sequence.held:
                if not self._fetch(sequence, cached, spare, batch):
                    return False
                continue
            if not self._start(sequence, batch, budget, cached, spare, earlier_prefills):
                return False
        return True

    def _resumes_in_pause(self) -> Collection[S]:
        """Returns the waiting sequences that may start during a pause."""
        if self.limits.rules.resumes_transfers_in_pause:
            return self._transfers.holding
        return ()

    def _next(self) -> S | None:
        """Returns the next sequence to admit; None if none may start.

        During a pause, only sequences start that hold blocks.
        """
        sequence = self.waiting.head()
        if sequence is None or not (self._transfers.holding or self.paused):
            return sequence
        if self.paused and sequence not in self._resumes_in_pause():
            return None
        if self._transfers.holding.get(sequence):
            self._transfers.accept(sequence)
        return sequence

    def _start(
        self,
        sequence: S,
        batch: Batch[S],
        budget: int,
        cached: int,
        spare: int,
        earlier_prefills: int,
    ) -> bool:
        """Admits a sequence, unless its tokens do not fit; returns whether they do.

        `earlier_prefills` counts the unfinished prompts that the step continues.
        """
        total = sequence.prompt_tokens + sequence.written
        is_fetched = sequence.held > 0
        has_prefill = sequence.computed < total - 1
        is_held = has_prefill and self._holds_prefill
        tokens = min(total - sequence.computed, self._prompt_limit)
        if is_held or (tokens > budget and not self.limits.enable_chunked_prefill):
            return False
        tokens = min(tokens, budget)
        if self._groups is not None:
            tokens = self._groups.clip(sequence, sequence.computed, tokens)
            chunk_end = sequence.computed + tokens
            if not tokens or not self._groups.fits_chunk(sequence, chunk_end, cached, spare):
                return False
        slots = sequence.computed + tokens
        padding = 0
        if self._speculation is not None:
            if not (has_prefill or earlier_prefills):
                padding = self._padding(sequence, batch)
            slots = self._slots(sequence, tokens + padding)
            if tokens + padding > budget or not self._fits_drafts(sequence, slots, cached, spare):
                return False
        self._has_prefill |= has_prefill
        self._leave_queue(sequence)
        if is_fetched:
            self._grow(sequence, slots)
        else:
            sequence.held = -(-slots // self._block_size)
            self.blocks.begin(sequence, cached, sequence.held - cached)
        if self._groups is not None:
            self._groups.trim(sequence, self._step, self._under_way)
        sequence.running = True
        sequence.place = next(self._places)
        self.running.append(sequence)
        self.prefilling.append(sequence)
        batch.admitted.append(sequence)
        self._prefill(sequence, tokens, batch, is_fetched and not has_prefill)
        if padding:
            self._pad(sequence, padding, batch)
        return True

    def _leave_queue(self, sequence: S) -> None:
        self.waiting.pop(sequence)
        if self._transfers.holding:
            self._transfers.admit(sequence)

    def _padding(self, sequence: S, batch: Batch[S]) -> int:
        """Returns the drafts that fill the admission of a sequence with one token.

        vLLM lets the sequence look like the decodes of the step, and rejects these drafts.
        """
        assert self._speculation is not None
        continued = batch.sequences > len(batch.admitted)
        if continued or (sequence.computed and self.limits.rules.pads_resumed_alone):
            return self._speculation.padding
        return 0

    def _pad(self, sequence: S, padding: int, batch: Batch[S]) -> None:
        """Adds wrong drafts to the admission of a sequence."""
        batch.tokens += padding
        batch.drafts[sequence] = Drafted(padding, accepted=0, delivered=0)
        self._prefill_left -= padding
        sequence.rejected += padding

    def _fits_drafts(self, sequence: S, slots: int, cached: int, spare: int) -> bool:
        """Returns whether blocks for an admitted sequence and its drafts fit.

        A sequence that was fetched holds blocks, and takes the missing ones here.
        """
        if slots <= sequence.prompt_tokens + sequence.written:
            return True
        if not sequence.held:
            return self.blocks.fits(sequence, slots, cached, spare)
        if self._missing_blocks(sequence, slots) + spare > self.blocks.free:
            return False
        self._grow(sequence, slots)
        return True

    def _look_up(self, sequence: S, spare: int) -> int | None:
        """Returns the cached blocks of the next sequence; None if it has no room.

        Other sequences keep `spare` blocks. A sequence that was fetched holds blocks.
        """
        total = sequence.prompt_tokens + sequence.written
        if sequence.held:
            if self._missing_blocks(sequence, total) + spare > self.blocks.free:
                return None
            return 0
        cached = self.blocks.find(sequence, total)
        if not self.blocks.fits(sequence, total, cached, spare):
            return None
        sequence.computed = cached * self._block_size + sequence.loaded
        return cached

    def _pass_over(self, sequence: S) -> bool:
        """Lets others start before a sequence whose blocks are on their way, if that is so."""
        if self._offloads is None or sequence.held or not self._offloads.must_wait:
            return False
        self.waiting.pass_over(sequence)
        if self._spacing is not None:
            self._spacing.defer(sequence)
        return True

    def _fetch(self, sequence: S, cached: int, spare: int, batch: Batch[S]) -> bool:
        """Assigns blocks, but no place, to a sequence whose cache will arrive, or a part.

        Returns whether they are free.
        """
        transfers = self._transfers
        is_alone = not (self.running or self._under_way)
        spare += transfers.reserved_blocks(self.prefilling, batch, is_alone=is_alone)
        if not transfers.start(sequence, cached, spare):
            return False
        sequence.place = next(self._places)
        if self.on_fetch is not None:
            self.on_fetch(sequence)
        return True

    def _prefill(self, sequence: S, tokens: int, batch: Batch[S], is_fetched: bool = False) -> None:
        """Computes the next `tokens` of a prompt; blocks are assigned already."""
        batch.tokens += tokens
        batch.sequences += 1
        if self._frees is not None:
            self._frees.note((sequence,), self._step)
        self._prefill_left -= tokens
        if is_fetched:  # its last token alone, which costs what a decode costs
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
        started = []
        for sequence in batch.prefilled:
            sequence.written += 1
            if sequence.written >= sequence.output_tokens:
                self._end(sequence, batch)
                if not sequence.decodes:
                    continue
            sequence.decodes = True
            self._join_bulk(sequence)
            started.append(sequence)
        if batch.decodes and batch.decodes[-1].place > batch.prefilled[0].place:
            batch.is_overtaken = True  # a prompt in small chunks
            batch.ends.sort(key=_place)
        if started:
            earlier = self._decoding
            self._decoding = [*earlier, *started]
            if earlier and earlier[-1].place > started[0].place:
                # A prompt in small chunks was overtaken.
                self._decoding.sort(key=_place)

    def _end(self, sequence: S, batch: Batch[S], is_foreseen: bool = True) -> None:
        """Notes that a sequence receives its last token in the new step.

        Until that step is over, vLLM does not know that a token stops the reply, or that drafts
        complete it, and computes one more step of the sequence. A second call is for that one.
        """
        sequence.decodes = (sequence.stops or not is_foreseen) and not sequence.last
        if sequence.last:
            batch.overruns.append(sequence)
            return
        sequence.written = max(sequence.written, sequence.output_tokens)
        sequence.last = True
        batch.ends.append(sequence)

    def _begin_bulk(self) -> None:
        """Lets all decodes advance in bulk."""
        self._singly = False
        self._decoding = [sequence for sequence in self.running if sequence.decodes]
        for sequence in self._decoding:
            self._join_bulk(sequence)

    def _end_bulk(self) -> None:
        """Brings all decodes up to date, and clears the calendars."""
        for sequence in self._decoding:
            sequence.computed = self._step + sequence.lead
            sequence.written = sequence.computed - sequence.prompt_tokens + 1
        self._calendar.clear()
        self._leads = 0
        self._singly = True

    def _join_bulk(self, sequence: S) -> None:
        """Lets a decode advance in bulk (rule 6) from the next step on.

        With drafts, each step visits the decodes one by one, and needs no calendar.
        """
        sequence.lead = sequence.computed - self._step
        self._leads += sequence.lead
        if self._in_bulk:
            self._calendar.add(sequence)

    def _leave_bulk(self, sequence: S) -> None:
        """Takes a decode out of the bulk's calendars."""
        self._leads -= sequence.lead
        self._calendar.remove(sequence)
