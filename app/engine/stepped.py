"""A choice in the steps of an engine, and its blocks as the scheduler asks for them.

`StepExecutor` decides when its tokens are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.engine.cache_manager import KVCacheManager, SequenceBlocks
from app.engine.client import Emit
from app.engine.reply import Reply
from app.engine.request import EngineRequest
from app.engine.sequence import CACHE_THRESHOLD, ReplySequence, SequenceContext
from app.engine.status import SequenceStatus, computed_in_steps, phase_in_steps
from app.engine.submission import Submission
from app.metrics.sequences import FinishReason

if TYPE_CHECKING:
    from app.engine.step_executor import StepExecutor


class SteppedSequence(ReplySequence):
    """One choice in the steps of an engine, which the scheduler itself holds."""

    __slots__ = ("_executor", "_gauge", "_late", "_promised", "_shift_s", "handed", "stored")

    def __init__(
        self,
        request: EngineRequest,
        reply: Reply,
        blocks: SequenceBlocks | None,
        context: SequenceContext,
        emit: Emit,
        submission: Submission,
        executor: StepExecutor,
    ) -> None:
        super().__init__(request, reply, blocks, context, emit, submission)
        self.handed = self.stored = 0
        """Tokens of the reply whose steps are over, and those of them that the cache knows."""
        self._executor = executor
        if request.remote_prefill:
            self._fetched_tokens = self.prompt_tokens
        self._gauge: Callable[[int, str | None], None] | None = None
        """The gauge that counts it now."""
        self._promised = 0
        """Tokens that it was given."""
        self._shift_s = 0.0
        """Seconds of waits on purpose so far."""
        self._late: deque[tuple[float, int]] = deque()
        """Moments and numbers of tokens that wait on purpose."""

    def status(self) -> SequenceStatus:
        phase, computed = phase_in_steps(self), computed_in_steps(self)
        return SequenceStatus(phase, computed, self.held, self._scheduled_s, self._first_s)

    def blocks_from(self, first: int) -> list[int]:
        return [] if self.blocks is None or self.held <= first else self.blocks.numbers(first)

    def enter(self, soon: bool) -> None:
        """Goes to the front; the scheduler sees it later, each prompt of several by itself."""
        index, n = self.request.index, self.request.n
        self._executor.submit(self, apart=index > 0 and index % n == 0)

    def seen(self, at_s: float) -> bool:
        """The scheduler sees it; False when it needs no step."""
        self._queued_s = at_s
        least = self.request.least_hit_rate
        if least and self._share_cached() < least:
            # Too little is cached: the reply is empty, and comes at once (simulator.md 13.7).
            self._empty(CACHE_THRESHOLD)
            self._scheduled_s = now_s = self._now()
            self.take(now_s, 1)
            return False
        self._stand(self._recorder.waiting)
        return True

    def _share_cached(self) -> float:
        return 0.0 if self.blocks is None else self.blocks.count_hits() / max(1, self.prompt_tokens)

    def admitted(self, now_s: float) -> None:
        """It has a place, and takes part in the next step."""
        if self._scheduled_s is None:
            self._scheduled_s = now_s
        self._stand(self._recorder.running)

    def found(self, tokens: int, loaded: int, created: int) -> None:
        """Notes the tokens of its prompt that are cached, that a store has, and that are cached from now on.

        The rest of a remote prefill comes over the net.
        """
        self._cached_tokens = tokens
        if self._fetched_tokens:
            self._fetched_tokens -= tokens
        else:
            self._fetched_tokens, self._created_tokens = loaded, created

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that need not be computed here; all of them when it comes again."""
        return self.prompt_tokens if self._begun else self._cached_tokens + self._fetched_tokens

    def all_ids(self, written: int) -> list[int]:
        """Returns the ids of the prompt and of the first `written` tokens of the reply."""
        return [*self.request.prompt_ids, *self._ids[:written]]

    def store(self, count: int, block_size: int) -> None:
        """Notes `count` tokens whose step is over; tells the cache of them when they fill up a block."""
        self.handed += count
        if not self.running or self.blocks is None or self.over:
            return
        known = self.prompt_tokens + self.handed - 1
        if known // block_size * block_size > self.prompt_tokens + self.stored - 1:
            self.blocks.write(self._ids[self.stored : self.handed])
            self.stored = self.handed

    def preempted(self) -> None:
        if not self.over:
            self._recorder.preempted()
            self._stand(self._recorder.waiting)

    def has_last(self) -> None:
        """The step of its last token is over: it no longer has a place."""
        self._stand(None)

    def take(self, at_s: float, count: int) -> None:
        """Emits its next `count` tokens, due at `at_s`, or puts them off where it waits on purpose."""
        if self._delays is None:
            self._emit_tokens(at_s, count)
            return
        for number in range(self._promised, self._promised + count):
            self._shift_s += self._delays.get(number, 0.0)
        self._promised += count
        if not self._shift_s:
            self._emit_tokens(at_s, count)
            return
        self._late.append((at_s + self._shift_s, count))
        if len(self._late) == 1:
            self._context.wheel.add(at_s + self._shift_s, self)

    def turn(self, now_s: float) -> float | None:
        """Emits what was put off, and is due; returns when the next token is due."""
        while self._late and self._late[0][0] <= now_s:
            self._emit_tokens(*self._late.popleft())
            if self.over:
                return None
        return self._late[0][0] if self._late else None

    def _emit_tokens(self, at_s: float, count: int) -> None:
        take, start = self._take_token, self._position
        if take is None or count != 1 or not start or start + 1 >= self._part_end or self._part is not None:
            self._emit_parts(at_s, count)
            return
        self._position = start + 1
        self._recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], self._ids[start], at_s)

    def _emit_parts(self, at_s: float, count: int) -> None:
        """Emits tokens one part after another; an image that follows the last one takes its time."""
        if not self._begun:
            self._begin(at_s)
        while not self.over:
            part, stop, image = self._part, min(self._position + count, self._part_end), False
            count -= stop - self._position
            if stop == self._part_end and stop < len(self._texts):
                image = self._to_next_part()
            if not self._emit_until(stop, at_s, part):
                return
            if image:
                due_s = at_s + self._context.timing.image()
                self._late.append((due_s, 1))
                self._context.wheel.add(due_s, self)
            if image or count <= 0:
                return

    def _stand(self, gauge: Callable[[int, str | None], None] | None) -> None:
        """Moves it to another gauge, or to none."""
        if self._gauge is not None:
            self._gauge(-1, self.adapter)
        if gauge is not None:
            gauge(1, self.adapter)
        self._gauge = gauge

    def _withdraw(self) -> None:
        self._executor.withdraw(self)
        self._stand(None)

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        super()._end(reason, counted)
        self._late.clear()


class HashedBlocks:
    """The scheduler's `Blocks` in a `KVCache`."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._cache, self._recorder, self._pool = manager.cache, manager.recorder, manager.cache.pool
        self.block_size = manager.cache.block_size
        self.capacity = manager.cache.capacity

    @property
    def free(self) -> int:
        return self._pool.queue.free

    def find(self, sequence: SteppedSequence, tokens: int) -> int:
        blocks = _blocks(sequence)
        sequence.stored = sequence.handed = written = tokens - sequence.prompt_tokens
        if len(blocks.prompt.token_ids) != tokens:  # it was preempted, and has written since
            blocks.prompt = self._cache.again(blocks.prompt, sequence.all_ids(written))
        blocks.hits = self._cache.hits(blocks.prompt)
        found = len(blocks.hits)
        sequence.loaded = 0 if sequence.preemptions else blocks.load(found * self.block_size)
        return found

    def fits(self, sequence: SteppedSequence, tokens: int, found: int) -> bool:
        blocks = _blocks(sequence)
        return self._cache.fits(blocks.prompt, blocks.hits)

    def begin(self, sequence: SteppedSequence, found: int, count: int) -> None:
        blocks = _blocks(sequence)
        cached = self._cache.begin(blocks.key, blocks.prompt, blocks=found + count, hits=blocks.hits) or 0
        blocks.hits = []
        if not sequence.preemptions:
            blocks.count_lookup(cached)
            created = self._cache.created(blocks.prompt, cached + blocks.loaded)
            sequence.found(cached, blocks.loaded, created)

    def grow(self, sequence: SteppedSequence, count: int) -> None:
        self._cache.grow(_blocks(sequence).key, count)

    def filled(self, sequence: SteppedSequence) -> None:
        blocks = _blocks(sequence)
        self._cache.compute(blocks.key, blocks.prompt, sequence.computed)

    def release(self, sequence: SteppedSequence, held: int, findable: int) -> None:
        self._cache.finish(_blocks(sequence).key)

    def forget(self, sequence: SteppedSequence) -> None:
        """Does nothing: its hashes find what it left."""


def _blocks(sequence: SteppedSequence) -> SequenceBlocks:
    assert sequence.blocks is not None
    return sequence.blocks
