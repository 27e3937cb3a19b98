"""Continuous batching as in vLLM V1: how many tokens each sequence gets in the next step.

Pure: no clock, no sockets, no randomness. The scheduler owns waiting and running sequences.
`StepLoop` times the steps and their tokens (step model of docs/how-timing-works.md, rules 3 and 4).

`Scheduler` is the interface, and has what all engines share about the sequences themselves.
`AdmittingScheduler` makes steps, and starts waiting sequences in them. `ExactScheduler` continues
running sequences one by one, and `PlainScheduler` in bulk; `make_scheduler` chooses between them.
Rules that only some engines have are policies (`SchedulingPolicy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import attrgetter
from typing import Generic

from app.core.engine.batch import Batch, Blocks, S, SchedulerLimits
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy, overriding
from app.core.engine.transfers import Transfers
from app.core.engine.waiting_queue import WaitingQueue

PREFILL_SHARE = 0.25
"""Minimum time of prompts in a step cut by time, as a share of the other work in the step.

Smaller parts mostly read weights.
"""
_place = attrgetter("place")


class Scheduler(Generic[S]):
    """Waiting and running sequences. `blocks` must have room for the longest sequence."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[S],
        waiting: WaitingQueue[S],
        policies: Sequence[SchedulingPolicy[S]] = (),
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self.policies = [policy for policy in policies if not policy.needs_adapters]
        self._adapter_policies = [policy for policy in policies if policy.needs_adapters]
        self.waiting = waiting
        for policy in policies:
            policy.attach(self)
        self._block_size = blocks.block_size
        self.running: list[S] = []
        """Running sequences in order of admission, including sequences whose last token is in
        flight.
        """
        self.preemptions = 0
        self.paused = False
        """True while no sequence is admitted."""
        self.held = False
        """True while nothing is computed."""
        self.watch_preempted: Callable[[S, S], None] | None = None
        """Receives each preempted sequence, and the one that needed its blocks."""
        self.on_fetch: Callable[[S], None] | None = None
        """Called with each sequence that enters `fetching`."""
        self.has_passed = False
        """True if the latest step passed over a sequence that waits for a transfer."""
        self._wanted_hooks = overriding(policies, "wanted")
        self._slots_hooks = overriding(policies, "slots")
        self._grown_hooks = overriding(policies, "grown")
        self._step_slots = sum(policy.step_slots for policy in policies)
        start_tokens = sum(policy.start_tokens for policy in policies)
        self._transfers = Transfers(blocks, waiting, start_tokens, limits.rules)
        self.fetching = self._transfers.fetching
        """Sequences that wait for the cache of a remote prefill or of a store, and hold blocks."""
        self._prompt_limit = self.limits.max_num_batched_tokens
        """Maximum tokens of one prompt in the step being made."""
        self._passes_self_preempted = limits.rules.passes_self_preempted
        self._exempt_prompts = int(limits.rules.exempts_lone_prompt)
        """Number of sequences beside which `long_prefill_token_threshold` does not hold."""
        self._watermark = int(limits.watermark * blocks.num_blocks)
        """Blocks that an admission leaves free while others run."""
        self.prefill_limit: Callable[[], int] | None = None
        """Returns the maximum prompt tokens of the next step; None: only `limits` hold."""
        self._varies = bool(self.policies) or limits.long_prefill_token_threshold > 0
        """True if the limits of a step depend on earlier steps or on the sequences."""
        self._prefill_left = 0
        """Prompt tokens that the step being made may still get."""
        self._places = count()
        self.step = 0
        """Number of the next step with tokens."""
        self.under_way = 0
        """Number of steps made whose tokens are not ready."""
        self.prefilling: list[S] = []
        """Running sequences with unfinished prompts, in order of admission."""
        # A batch is a step under way while the next one is made, so it must not see later changes.
        self._decoding: list[S] = []
        """Decodes in order of admission.

        The list is replaced, never changed, so batches can keep it.
        """
        self._has_visited = False
        """True if the step being made has visited decodes one by one."""

    @property
    def idle(self) -> bool:
        """True if no step can be made until something arrives or resumes."""
        is_empty = not self.waiting.members or (self.paused and not self._transfers.resumable)
        return self.held or (is_empty and not self.running and not self.fetching)

    @property
    def decoding(self) -> tuple[int, int]:
        """The decodes of the next step, and the tokens computed before it, summed over them."""
        raise NotImplementedError

    def steps_before_end(self) -> int:
        """Returns how many steps can be made before one that may give a decode its last token."""
        return 0

    def retry_s(self) -> float:
        """Returns when a sequence may start that the latest step passed over, in seconds."""
        return min(policy.next_s for policy in self.policies)

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
        else:
            self._defer(sequence)

    def schedule(self) -> Batch[S] | None:
        """Returns the next step; None if there is nothing to compute."""
        raise NotImplementedError

    def complete(self, batch: Batch[S]) -> None:
        """Ends `batch`, the oldest step under way; sequences with their last token leave."""
        self.under_way -= 1
        for policy in self.policies:
            policy.complete_step(batch)
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
        for batch in reversed(list(under_way)):
            batch.take_back()
        # The last one first: each goes to the front of the queue, so the order of admission stays.
        for sequence in reversed(list(self.running)):
            self._preempt(sequence, sequence)
        self._decoding = []

    def release(self, sequence: S) -> None:
        """Frees the blocks of a sequence that has left, and kept them for a remote decode."""
        if sequence.held:
            self.blocks.release(sequence, sequence.held, 0)
            sequence.held = 0

    def missing_blocks(self, sequence: S, tokens: int) -> int:
        """Returns how many blocks a sequence lacks for its first `tokens` tokens."""
        return max(0, -(-tokens // self._block_size) - sequence.held)

    def _start_decode(self, sequence: S) -> None:
        """Called for a sequence that decodes from the next step on."""

    def _stop_decode(self, sequence: S) -> None:
        self._decoding = [decode for decode in self._decoding if decode is not sequence]

    def _defer(self, sequence: S) -> None:
        for policy in self.policies:
            policy.defer(sequence)

    # How sequences leave.

    def _finish(self, sequence: S, keeps_blocks: bool = False) -> None:
        """Takes a sequence that has ended out of the running ones."""
        for policy in self.policies:
            policy.finish(sequence)
        self._leave(sequence, 0, keeps_blocks)

    def _leave(self, sequence: S, findable: int, keeps_blocks: bool = False) -> None:
        """Takes a sequence out of the running ones; it may find `findable` blocks again."""
        self.running.remove(sequence)
        sequence.running = False
        sequence.decodes = False
        if not keeps_blocks:
            # A list, not a generator: each policy must see the sequence.
            if not any([policy.keeps_blocks(sequence) for policy in self.policies]):
                self.blocks.release(sequence, sequence.held, findable)
            sequence.held = 0
        for policy in self.policies:
            policy.left(sequence)
        if sequence.lora is not None:
            self.waiting.left(sequence)

    def _forget(self, sequence: S) -> None:
        """Drops what is stored for a sequence that does not run, and will not run again."""
        self._transfers.holding.pop(sequence, None)
        for policy in self.policies:
            policy.finish(sequence)
        self.release(sequence)
        self.blocks.forget(sequence)

    def _preempt(self, victim: S, needy: S) -> None:
        """Frees the blocks of `victim` for `needy`, and queues it; tokens in flight still arrive.

        Policies may drop these tokens.
        """
        for policy in self.policies:
            policy.preempt(victim)
        computed = victim.computed
        if victim.decodes and self.under_way:
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

    # What a step does to a sequence.

    def _grow(self, sequence: S, tokens: int) -> None:
        """Assigns the blocks that a sequence lacks for its first `tokens` tokens."""
        missing = self.missing_blocks(sequence, tokens)
        if missing:
            self.blocks.grow(sequence, missing)
            sequence.held += missing
        for grown in self._grown_hooks:
            grown(sequence, tokens)

    def _prefill(self, sequence: S, tokens: int, batch: Batch[S], is_fetched: bool = False) -> None:
        """Computes the next `tokens` of a prompt; blocks are assigned already."""
        batch.tokens += tokens
        batch.sequences += 1
        for policy in self.policies:
            policy.prefill(sequence, tokens)
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
            self._start_decode(sequence)
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


class AdmittingScheduler(Scheduler[S]):
    """Makes steps. Subclasses decide how running sequences continue (`_continue`)."""

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
        # As in vLLM, nothing starts in a step that has preempted: running sequences lack blocks.
        runs_out = has_preempted or not self.waiting.members or self._admit(batch)
        if batch.tokens:
            self.step += 1
            self.under_way += 1
        if self._has_visited:
            self._end_visits()
        if batch.prefilled:
            self._sample(batch)
        if self.policies or self.waiting.adapters:
            self._end_step(batch, has_preempted, runs_out)
        if batch.tokens:
            return batch
        if has_preempted and not self.under_way:
            # Nothing is computed, and no step will end that would call again.
            return self.schedule()
        return None

    def _continue(self, batch: Batch[S]) -> bool:
        """Continues all running sequences (rule 3a); returns whether one was preempted."""
        raise NotImplementedError

    def _end_visits(self) -> None:
        """Called if `_continue` has visited decodes one by one, when the step has its number."""
        raise NotImplementedError

    def _begin_step(self) -> None:
        """Sets the limits of the new step, where they vary from step to step."""
        limits = self.limits
        if self.prefill_limit is not None:
            self._prefill_left = self.prefill_limit()
        if limits.long_prefill_token_threshold:
            self._limit_prompts(limits.long_prefill_token_threshold)
        self._transfers.resumed.clear()
        for policy in self.policies:
            policy.begin_step()

    def _limit_prompts(self, threshold: int) -> None:
        """Sets the maximum tokens of one prompt; a prompt that is alone has no limit."""
        budget = self.limits.max_num_batched_tokens
        sequences = len(self.running) + len(self.waiting.members) + len(self.fetching)
        if self.limits.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, budget // sequences)
        is_limited = sequences > self._exempt_prompts
        self._prompt_limit = threshold if is_limited else budget

    def _skip_step(self) -> None:
        for policy in self.policies:
            policy.skip_step()

    def _end_step(self, batch: Batch[S], has_preempted: bool, runs_out: bool) -> None:
        """Notes what later steps depend on."""
        self.has_passed = self.waiting.end_passes()
        policies = self.policies
        if self.waiting.adapters:
            policies = [*policies, *self._adapter_policies]
        for policy in policies:
            policy.end_step(batch, has_preempted=has_preempted, runs_out=runs_out)

    def _admit(self, batch: Batch[S]) -> bool:
        """Admits waiting sequences (rule 3b).

        Returns whether no place or no token is left for the next one.
        """
        if self.paused and not self._transfers.holding:
            return True
        limits = self.limits
        max_running = limits.max_running
        while self.waiting.members and len(self.running) < max_running:
            left = limits.max_num_batched_tokens - batch.tokens
            left -= self._step_slots * (batch.sequences + 1)
            budget = min(left, self._prefill_left)
            if budget <= 0:
                return True
            sequence = self._next()
            if sequence is None:
                return False
            spare = self._watermark if self.running else 0
            cached = self._look_up(sequence, spare)
            if cached is None:
                if self._pass_over(sequence, min(budget, self._prompt_limit)):
                    continue
                return False
            if sequence.remote and not sequence.held:
                if not self._fetch(sequence, cached, spare, batch):
                    return False
                continue
            if not self._start(sequence, batch, budget, cached, spare):
                return False
        return True

    def _next(self) -> S | None:
        """Returns the next sequence to admit; None if none may start.

        During a pause, only sequences start that hold blocks.
        """
        sequence = self.waiting.head()
        if sequence is None or not (self._transfers.holding or self.paused):
            return sequence
        if self.paused and sequence not in self._transfers.resumable:
            return None
        if self._transfers.holding.get(sequence):
            self._transfers.accept(sequence)
        return sequence

    def _start(self, sequence: S, batch: Batch[S], budget: int, cached: int, spare: int) -> bool:
        """Admits a sequence, unless its tokens do not fit; returns whether others may start."""
        total = sequence.prompt_tokens + sequence.written
        tokens = min(total - sequence.computed, self._prompt_limit)
        if tokens > budget and not self.limits.enable_chunked_prefill:
            return False
        admission = Admission(
            sequence=sequence,
            cached=cached,
            spare=spare,
            budget=budget,
            tokens=min(tokens, budget),
            is_fetched=sequence.held > 0,
            has_prefill=sequence.computed < total - 1,
        )
        for policy in self.policies:
            if not policy.fits(admission, batch):
                if admission.lets_pass:
                    self._let_pass(sequence)
                return admission.lets_pass
        self._leave_queue(sequence)
        slots = sequence.computed + admission.tokens + admission.reserve
        if admission.is_fetched:
            self._grow(sequence, slots)
        else:
            sequence.held = -(-slots // self._block_size)
            self.blocks.begin(sequence, cached, sequence.held - cached)
        for policy in self.policies:
            policy.started(admission, batch)
        sequence.running = True
        sequence.place = next(self._places)
        self.running.append(sequence)
        self.prefilling.append(sequence)
        batch.admitted.append(sequence)
        is_decode = admission.is_fetched and not admission.has_prefill
        self._prefill(sequence, admission.tokens, batch, is_decode)
        batch.tokens += admission.padding
        self._prefill_left -= admission.padding
        return True

    def _leave_queue(self, sequence: S) -> None:
        self.waiting.pop(sequence)
        if self._transfers.holding:
            self._transfers.admit(sequence)

    def _look_up(self, sequence: S, spare: int) -> int | None:
        """Returns the cached blocks of the next sequence; None if it has no room.

        Other sequences keep `spare` blocks. A sequence that was fetched holds blocks.
        """
        total = sequence.prompt_tokens + sequence.written
        if sequence.held:
            if self.missing_blocks(sequence, total) + spare > self.blocks.free:
                return None
            return 0
        cached = self.blocks.find(sequence, total)
        if not self.blocks.fits(sequence, total, cached, spare):
            return None
        sequence.computed = cached * self._block_size + sequence.loaded
        return cached

    def _pass_over(self, sequence: S, limit: int) -> bool:
        """Lets others start before a sequence whose blocks are on their way, if that is so.

        Policies may have other reasons. The sequence could compute up to `limit` tokens.
        """
        # `must_wait` is about the latest lookup, which a sequence with blocks has not had.
        is_awaited = not sequence.held and any([policy.must_wait for policy in self.policies])
        if not is_awaited:
            is_awaited = any([policy.lacks_room(sequence, limit) for policy in self.policies])
        if is_awaited:
            self._let_pass(sequence)
        return is_awaited

    def _let_pass(self, sequence: S) -> None:
        self.waiting.pass_over(sequence)
        self._defer(sequence)

    def _fetch(self, sequence: S, cached: int, spare: int, batch: Batch[S]) -> bool:
        """Assigns blocks, but no place, to a sequence whose cache will arrive, or a part.

        Returns whether they are free.
        """
        transfers = self._transfers
        is_alone = not (self.running or self.under_way)
        spare += transfers.reserved_blocks(self.prefilling, batch, is_alone=is_alone)
        if not transfers.start(sequence, cached, spare):
            return False
        sequence.place = next(self._places)
        if self.on_fetch is not None:
            self.on_fetch(sequence)
        return True
