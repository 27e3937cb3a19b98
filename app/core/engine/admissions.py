"""Steps of a scheduler, and how waiting sequences start in them."""

from __future__ import annotations

from app.core.engine.batch import Batch, S
from app.core.engine.scheduler import Scheduler
from app.core.engine.scheduling_policy import Admission


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
        runs_out = has_preempted or not self.waiting.members or self._admit(batch)
        if batch.tokens:
            self.step += 1
            self.under_way += 1
        if self._has_visited:
            self._end_visits()
        if batch.prefilled:
            self._sample(batch)
        if self.policies:
            self._end_step(batch, has_preempted, runs_out)
        if batch.tokens:
            return batch
        if has_preempted and not self.under_way:
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
        is_limited = sequences > 1 or not self.limits.rules.exempts_lone_prompt
        self._prompt_limit = threshold if is_limited else budget

    def _skip_step(self) -> None:
        for policy in self.policies:
            policy.skip_step()

    def _end_step(self, batch: Batch[S], has_preempted: bool, runs_out: bool) -> None:
        """Notes what later steps depend on."""
        self.has_passed = self.waiting.end_passes()
        for policy in self.policies:
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
                if self._pass_over(sequence):
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
        if self.paused and sequence not in self._resumes_in_pause():
            return None
        if self._transfers.holding.get(sequence):
            self._transfers.accept(sequence)
        return sequence

    def _start(self, sequence: S, batch: Batch[S], budget: int, cached: int, spare: int) -> bool:
        """Admits a sequence, unless its tokens do not fit; returns whether they do."""
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
                return False
        self._leave_queue(sequence)
        slots = admission.slots
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

    def _pass_over(self, sequence: S) -> bool:
        """Lets others start before a sequence whose blocks are on their way, if that is so."""
        if sequence.held:
            return False
        for policy in self.policies:
            if policy.must_wait:
                self.waiting.pass_over(sequence)
                self._defer(sequence)
                return True
        return False

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
