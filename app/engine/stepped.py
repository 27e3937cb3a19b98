"""A sequence that shares the steps of an engine: `StepExecutor` says when its tokens are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Protocol

from app.engine.batch import SequenceState
from app.engine.cache_manager import SequenceBlocks
from app.engine.client import Emit
from app.engine.reply import Reply
from app.engine.request import EngineRequest
from app.engine.sequence import CACHE_THRESHOLD, Runtime, Sequence


class Steps(Protocol):
    """What a sequence knows of who runs it."""

    block_size: int

    def enter(self, state: StepState) -> None:
        """A sequence has come."""

    def withdraw(self, state: StepState) -> None:
        """It is over, perhaps before its time."""


class StepState(SequenceState):
    """A sequence as the scheduler of this process knows it."""

    __slots__ = ("adapter", "blocks", "handed", "holds_adapter", "owner", "stored")

    def __init__(self, owner: SteppedSequence, reply: Reply, blocks: SequenceBlocks | None) -> None:
        request = owner.request
        super().__init__(
            len(request.prompt_ids), len(reply.ids), request.priority, remote=request.remote_prefill
        )
        self.owner: SteppedSequence | None = owner
        """None when it is over: the steps under way may keep us for a while."""
        self.adapter = request.adapter
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
        self.state = StepState(self, reply, blocks)
        self._executor = executor
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

    def fits(self) -> bool:
        blocks = self.state.blocks
        return blocks is None or blocks.fits()

    def enter(self, soon: bool = False) -> None:
        """The front has it; the scheduler sees it in a while."""
        self._executor.enter(self.state)

    def seen(self) -> bool:
        """The scheduler sees it; False when it is over already."""
        if self.over:
            return False
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
        if self.request.remote_prefill:
            self._fetched_tokens = len(self.request.prompt_ids) - tokens

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
