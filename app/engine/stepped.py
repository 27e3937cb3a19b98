"""Sequences that share the steps of an engine, the line and the blocks that they have there.

`StepExecutor` says when their tokens are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed
from concurrent.futures import Future
from typing import Protocol, TypeVar

from app.engine.batch import SequenceState
from app.engine.cache_manager import KVCacheManager, SequenceBlocks
from app.engine.client import Emit
from app.engine.reply import Reply
from app.engine.request import EngineRequest
from app.engine.sequence import CACHE_THRESHOLD, Runtime, Sequence
from app.engine.standing import Standing, computed_in_steps, phase_in_steps
from app.engine.waiting import WaitingQueue
from app.lora.adapters import LoRASlots

T = TypeVar("T")


class Steps(Protocol):
    """What a sequence knows of who runs it."""

    block_size: int

    def enter(self, state: StepState, apart: bool = False) -> None:
        """A sequence has come; if `apart`, the scheduler sees it after those that have come before."""

    def withdraw(self, state: StepState) -> None:
        """It is over, perhaps before its time."""


class StepOwner(Protocol):
    """Who is told how it goes: a sequence, or a call."""

    @property
    def arrival_s(self) -> float:
        """When it came."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of its prompt that need not be computed."""

    def seen(self, at_s: float) -> bool:
        """The scheduler sees it; False when it needs no step."""

    def found(self, tokens: int) -> None:
        """So many tokens of its prompt were cached."""

    def admitted(self, now_s: float) -> None:
        """It has a place, and takes part in the next step."""

    def waits_again(self) -> None:
        """It lost its blocks."""

    def has_last(self) -> None:
        """The step of its last token is over: it no longer has a place."""

    def token(self, at_s: float, count: int) -> None:
        """Its next `count` tokens, due at `at_s`."""

    def written(self, count: int) -> Listed[int]:
        """The ids of its first `count` tokens."""

    def fail(self, error: Exception) -> None:
        """Its tokens could not be taken."""


class StepState(SequenceState):
    """A sequence as the scheduler of this process knows it."""

    __slots__ = ("adapter", "blocks", "handed", "holds_adapter", "owner", "stored")

    def __init__(
        self,
        owner: StepOwner,
        prompt_tokens: int,
        output_tokens: int,
        priority: int = 0,
        remote: bool = False,
        adapter: str | None = None,
        blocks: SequenceBlocks | None = None,
    ) -> None:
        super().__init__(prompt_tokens, output_tokens, priority, remote)
        self.owner: StepOwner | None = owner
        """None when it is over: the steps under way may keep us for a while."""
        self.adapter = adapter
        self.holds_adapter = False
        self.blocks = blocks
        self.handed = self.stored = 0
        """Tokens of the reply whose steps are over, and those of them that the cache knows."""


class SteppedSequence(Sequence):
    """One choice in the steps of an engine."""

    __slots__ = ("_counted", "_executor", "_late", "_promised", "_shift_s", "state")

    def __init__(
        self,
        request: EngineRequest,
        reply: Reply,
        blocks: SequenceBlocks | None,
        runtime: Runtime,
        emit: Emit,
        ended: Callable[[Sequence], tuple[int, int]],
        executor: Steps,
    ) -> None:
        super().__init__(request, reply, None, runtime, emit, ended)
        self.state = StepState(
            self,
            len(request.prompt_ids),
            len(reply.ids),
            request.priority,
            request.remote_prefill,
            request.adapter,
            blocks,
        )
        self._executor = executor
        if request.remote_prefill:
            self._fetched_tokens = len(request.prompt_ids)
        self._counted: Callable[[int, str | None], None] | None = None
        """The gauge in which it stands."""
        self._promised = 0
        """Tokens that it was given."""
        self._shift_s = 0.0
        """Waits on purpose so far."""
        self._late: deque[tuple[float, int]] = deque()
        """Moments and numbers of tokens that wait on purpose."""

    @property
    def preemptions(self) -> int:
        return self.state.preemptions

    @property
    def arrival_s(self) -> float:
        return self.request.arrival_s

    def standing(self) -> Standing:
        state = self.state
        phase, computed = phase_in_steps(state), computed_in_steps(state)
        return Standing(phase, computed, state.held, self._scheduled_s, self._first_s)

    def blocks_from(self, first: int) -> list[int]:
        state = self.state
        return [] if state.blocks is None or state.held <= first else state.blocks.numbers(first)

    def fits(self) -> bool:
        blocks = self.state.blocks
        return blocks is None or blocks.fits()

    def enter(self, soon: bool) -> None:
        """The front has it; the scheduler sees it in a while, each prompt of several by itself."""
        index, n = self.request.index, self.request.n
        self._executor.enter(self.state, apart=index > 0 and index % n == 0)

    def seen(self, at_s: float) -> bool:
        """The scheduler sees it; False when it needs no step."""
        self._queued_s = at_s
        least = self.request.least_hit_rate
        if least and self._share_cached() < least:
            # Too little is cached: the reply is empty, and comes at once (simulator.md 13.7).
            self._empty(CACHE_THRESHOLD)
            now_s = self._runtime.clock.now()
            self._scheduled_s = now_s
            self.token(now_s, 1)
            return False
        self._count(self._runtime.recorder.waiting)
        return True

    def _share_cached(self) -> float:
        blocks, tokens = self.state.blocks, len(self.request.prompt_ids)
        return 0.0 if blocks is None else blocks.find(()) * self._executor.block_size / max(1, tokens)

    def admitted(self, now_s: float) -> None:
        """It has a place, and takes part in the next step."""
        if self._scheduled_s is None:
            self._scheduled_s = now_s
        self._count(self._runtime.recorder.running)

    def found(self, tokens: int) -> None:
        """So many tokens of its prompt were cached; the others of a remote prefill come over the net."""
        self._cached_tokens = tokens
        if self._fetched_tokens:
            self._fetched_tokens -= tokens
        elif self.state.blocks is not None:
            self._fetched_tokens = self.state.blocks.loaded
            self._created_tokens = self.state.blocks.created(tokens + self._fetched_tokens)

    @property
    def cached_tokens(self) -> int:
        """Of its prompt: those that need not be computed here; all of them, when it comes again."""
        return self.state.prompt_tokens if self._begun else self._cached_tokens + self._fetched_tokens

    def written(self, count: int) -> Listed[int]:
        """The ids of its first `count` tokens."""
        return self._ids[:count]

    def waits_again(self) -> None:
        """It lost its blocks."""
        self._runtime.recorder.preempted()
        self._count(self._runtime.recorder.waiting)

    def has_last(self) -> None:
        """The step of its last token is over: it no longer has a place."""
        self._count(None)

    def token(self, at_s: float, count: int) -> None:
        """Its next `count` tokens, due at `at_s`."""
        if self._delays is None:
            self._say(at_s, count)
            return
        for number in range(self._promised, self._promised + count):
            self._shift_s += self._delays.get(number, 0.0)
        self._promised += count
        if not self._shift_s:
            self._say(at_s, count)
            return
        self._late.append((at_s + self._shift_s, count))
        if len(self._late) == 1:
            self._runtime.wheel.add(at_s + self._shift_s, self)

    def turn(self, now_s: float) -> float | None:
        """Emit what was put off, and is due."""
        while self._late and self._late[0][0] <= now_s:
            self._say(*self._late.popleft())
            if self.over:
                return None
        return self._late[0][0] if self._late else None

    def _say(self, at_s: float, count: int) -> None:
        take, start = self._take_token, self._position
        if take is None or count != 1 or not start or start + 1 >= self._part_end or self._part is not None:
            self._say_usually(at_s, count)
            return
        self._position = start + 1
        self._runtime.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], self._ids[start], at_s)

    def _say_usually(self, at_s: float, count: int) -> None:
        """Tokens one part after another; an image that follows the last one takes its time."""
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
                due_s = at_s + self._runtime.timing.image()
                self._late.append((due_s, 1))
                self._runtime.wheel.add(due_s, self)
            if image or count <= 0:
                return

    def _count(self, gauge: Callable[[int, str | None], None] | None) -> None:
        """Stand in another gauge, or in none."""
        if self._counted is not None:
            self._counted(-1, self.adapter)
        if gauge is not None:
            gauge(1, self.adapter)
        self._counted = gauge

    def _withdraw(self) -> None:
        self._executor.withdraw(self.state)
        self._count(None)

    def _leave(self) -> None:
        self.state.owner = None
        self.state.blocks = None
        self._late.clear()


class StepCall(Future[T]):
    """A function call that waits for its turn with the sequences: its own future."""

    def __init__(self, call: Callable[[], T], arrival_s: float) -> None:
        super().__init__()
        self.arrival_s = arrival_s
        self.cached_tokens = 1
        self._call = call

    def seen(self, at_s: float) -> bool:
        return self.set_running_or_notify_cancel()

    def found(self, tokens: int) -> None:
        """It has no prompt."""

    def admitted(self, now_s: float) -> None:
        """It is called when the step is over."""

    def waits_again(self) -> None:
        """Nothing of it is lost."""

    def has_last(self) -> None:
        """Its place is free before its result is there: who waits for it may submit again."""

    def token(self, at_s: float, count: int) -> None:
        try:
            self.set_result(self._call())
        except Exception as error:
            self.set_exception(error)

    def written(self, count: int) -> Listed[int]:
        return ()

    def fail(self, error: Exception) -> None:
        self.set_exception(error)


class StepQueue:
    """Who waits, by the rules of `WaitingQueue`; who has a place has its adapter in memory."""

    def __init__(self, lora: LoRASlots, by_priority: bool) -> None:
        self._lora = lora
        self._queue: WaitingQueue[StepState] = WaitingQueue(lora, by_priority)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: StepState) -> None:
        # Who has blocks already, of a remote prefill, goes first: those before it may want these very blocks.
        self._queue.add(sequence, sequence.arrived, first=sequence.held > 0)
        if sequence.preemptions and sequence.owner is not None:
            sequence.owner.waits_again()

    def head(self) -> StepState | None:
        return self._queue.head()

    def pop(self) -> StepState:
        sequence = self._queue.head()
        assert sequence is not None
        self._queue.take(sequence)
        sequence.holds_adapter = self._lora.enter(sequence.adapter)
        return sequence

    def left(self, sequence: StepState) -> None:
        if sequence.holds_adapter and sequence.adapter is not None:
            self._lora.leave(sequence.adapter)

    def remove(self, sequence: StepState) -> bool:
        return self._queue.remove(sequence)


class HashedBlocks:
    """The blocks of `KVCacheManager` as a scheduler asks for them."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._cache = manager.cache
        self.block_size = manager.cache.block_size
        self.capacity = manager.cache.capacity

    @property
    def free(self) -> int:
        return self._cache.free

    def find(self, sequence: StepState, tokens: int) -> int:
        owner, blocks = sequence.owner, sequence.blocks
        if owner is None or blocks is None:
            return 0
        sequence.stored = sequence.handed = written = tokens - sequence.prompt_tokens
        found = blocks.find(owner.written(written) if written else ())
        sequence.loaded = 0 if sequence.preemptions else blocks.load(found * self.block_size)
        return found

    def fits(self, sequence: StepState, tokens: int, found: int) -> bool:
        return sequence.blocks is None or sequence.blocks.fits_found()

    def begin(self, sequence: StepState, found: int, count: int) -> None:
        if sequence.blocks is None:
            return
        sequence.blocks.begin(found + count)
        if not sequence.preemptions and sequence.owner is not None:
            sequence.owner.found(sequence.blocks.looked_up())

    def grow(self, sequence: StepState, count: int) -> None:
        if sequence.blocks is not None:
            sequence.blocks.grow(count)

    def filled(self, sequence: StepState) -> None:
        if sequence.blocks is not None:
            sequence.blocks.compute(sequence.computed)

    def release(self, sequence: StepState, held: int, findable: int) -> None:
        if sequence.blocks is not None:
            sequence.blocks.finish()

    def forget(self, sequence: StepState) -> None:
        """What it left is found by its hashes, by whoever."""
