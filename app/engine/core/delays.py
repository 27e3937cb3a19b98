"""Log of what delays sequences: causes of waits, contents of steps, admissions, preemptions,
transfers.

A `DelayLog` is attached to an engine while the console or traces are on; without one nothing is
recorded. `explanation.py` reads the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Literal, NamedTuple

from app.engine.core.batch import Batch, Blocks, LoRASlots
from app.engine.core.client import EngineClient
from app.engine.core.sequence import Sequence
from app.engine.core.sequence_pool import SequencePool
from app.engine.core.step_executor import StepExecutor
from app.engine.core.stepped_sequence import SteppedSequence
from app.engine.core.timed_sequence import TimedSequence
from app.engine.core.waiting_queue import WaitingQueue

Cause = Literal["", "places", "budget", "blocks", "adapter", "priority", "paused", "step"]
"""Lack of a waiting sequence, "" if unknown. `step`: the end of the steps under way."""

MOST_STEPS, MOST_CHUNKS, MOST_ENTRIES = 20_000, 64, 10_000
"""Most logged steps (about five minutes) and prompts in all, prompts of a step, entries of any
other kind.
"""
STEP_BYTES, CHUNK_BYTES, ENTRY_BYTES = 200, 300, 400
"""Memory of a step without its chunks, of a chunk, and of another entry; estimates."""
ID_CHARACTERS = 128
"""Most characters that are kept of a request id, which clients may choose."""


class Chunk(NamedTuple):
    """Tokens of one prompt computed in one step.

    `key` is the `id()` of the request while that exists.
    """

    key: int
    request_id: str
    tokens: int
    prompt_tokens: int
    is_last: bool


class Step(NamedTuple):
    start_s: float
    end_s: float
    prefill_tokens: int
    decodes: int
    """Tokens of decodes, with drafts."""
    sequences: int
    chunks: tuple[Chunk, ...]


class Wait(NamedTuple):
    """Cause of all waits from `at_s` until the next entry; `adapters` are in memory, if each is in
    use.
    """

    at_s: float
    cause: Cause
    detail: str = ""
    adapters: tuple[str, ...] = ()


class Admission(NamedTuple):
    """A sequence began to run, or ran again after a preemption; `first_s` is its first token, if
    known.
    """

    at_s: float
    key: int
    name: str
    """Request id and size of the prompt."""
    queued_s: float
    priority: int
    first_s: float


class Interruption(NamedTuple):
    """Begin of a preemption, which ends with an admission, or a transfer until `until_s`."""

    at_s: float
    key: int
    detail: str
    until_s: float = inf


class DelayLog:
    """Log of one engine; the oldest entries are dropped.

    Moments are seconds of the engine's clock.
    """

    limit_bytes = MOST_STEPS * (STEP_BYTES + CHUNK_BYTES) + 3 * MOST_ENTRIES * ENTRY_BYTES

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.steps_made = 0
        self.waits: deque[Wait] = deque(maxlen=MOST_ENTRIES)
        self.admissions: deque[Admission] = deque(maxlen=MOST_ENTRIES)
        self.interruptions: deque[Interruption] = deque(maxlen=MOST_ENTRIES)
        self._computed: dict[SteppedSequence, int] = {}
        """Computed tokens of unfinished prompts."""
        self._fetching: set[SteppedSequence] = set()
        self._chunks_kept = 0

    @property
    def size_bytes(self) -> int:
        entries = len(self.waits) + len(self.admissions) + len(self.interruptions)
        return (
            len(self.steps) * STEP_BYTES + self._chunks_kept * CHUNK_BYTES + entries * ENTRY_BYTES
        )

    def attach(self, engine: EngineClient) -> DelayLog:
        """Records `engine` from now on; one in another process only has phases without causes."""
        executor = getattr(engine, "executor", None)
        if isinstance(executor, StepExecutor):
            executor.watch_step = partial(self._take_step, executor)
            executor.watch_stall = partial(self._take_waits, executor)
            executor.scheduler.watch_preempted = partial(self._take_preempted, executor)
        elif isinstance(executor, SequencePool):
            executor.watch_queue = partial(self._take_queue, executor)
            executor.watch_start = self._take_start
        return self

    def recent(self, made: int) -> list[Step]:
        """Returns the steps after the first `made`, in order, as far as they are kept."""
        return list(islice(self.steps, max(0, len(self.steps) - (self.steps_made - made)), None))

    # Calls from shared steps.

    def _take_step(
        self, executor: StepExecutor, batch: Batch[SteppedSequence], start_s: float, end_s: float
    ) -> None:
        decodes = len(batch.decodes) + sum(drafted for drafted, _ in batch.drafts.values())
        chunks = tuple(islice(self._chunks(executor, batch), MOST_CHUNKS)) if batch.prefills else ()
        self.steps.append(
            Step(start_s, end_s, batch.tokens - decodes, decodes, batch.sequences, chunks)
        )
        self.steps_made += 1
        self._chunks_kept += len(chunks)
        while len(self.steps) > MOST_STEPS or self._chunks_kept > MOST_STEPS:
            self._chunks_kept -= len(self.steps.popleft().chunks)
        for sequence in batch.admitted:
            self._admit(sequence, executor.now_s, inf)
        self._take_waits(executor, batch.tokens, chunks)

    def _chunks(self, executor: StepExecutor, batch: Batch[SteppedSequence]) -> Iterator[Chunk]:
        """Yields the prompts of this step, unfinished ones first, with the tokens computed of each."""
        before, prefilling = self._computed, executor.scheduler.prefilling
        self._computed = {sequence: sequence.computed for sequence in prefilling}
        for it in (*prefilling, *batch.prefilled):
            begun = 0 if it.preemptions else it.cached_tokens + it.loaded
            tokens = it.computed - before.get(it, begun)
            if tokens > 0:
                is_last = it not in self._computed
                yield Chunk(id(it.request), id_of(it), tokens, it.prompt_tokens, is_last)

    def _take_waits(
        self, executor: StepExecutor, tokens: int = 0, chunks: tuple[Chunk, ...] = ()
    ) -> None:
        """Records transfers that begin, and what keeps others out of a step that holds `tokens`."""
        fetching, now_s = executor.scheduler.fetching, executor.now_s
        if self._fetching or fetching:
            known, self._fetching = self._fetching, set(fetching)
            for until_s, _, sequence in executor.transfers:
                if sequence not in known:
                    self.interruptions.append(
                        Interruption(now_s, id(sequence.request), "", until_s)
                    )
        scheduler, queue, places = (
            executor.scheduler,
            executor.scheduler.waiting,
            executor.limits.max_num_seqs,
        )
        full = full_step(executor, tokens, chunks) if queue.members else ""
        load = scheduler.paused, len(scheduler.running), places, full
        self._note(now_s, queue.lora, *cause_of(queue, *load, executor.blocks))

    def _take_preempted(
        self, executor: StepExecutor, victim: SteppedSequence, by: SteppedSequence
    ) -> None:
        reason, running = "needed its blocks", executor.scheduler.running
        if by is victim and running:
            reason, by = "held most blocks", max(running, key=lambda it: it.held)
        self.interruptions.append(
            Interruption(executor.now_s, id(victim.request), f"{id_of(by)} {reason}")
        )

    # Calls from the slots of sequences with latencies of their own.

    def _take_start(self, sequence: TimedSequence) -> None:
        if sequence.scheduled_s is not None:
            self._admit(sequence, sequence.scheduled_s, sequence.due_s)

    def _take_queue(self, pool: SequencePool, now_s: float) -> None:
        load = pool.paused, pool.running, pool.slots, ""
        self._note(now_s, pool.queue.lora, *cause_of(pool.queue, *load, pool.context.cache))

    def _admit(self, it: Sequence, at_s: float, first_s: float) -> None:
        name, priority = f"{id_of(it)} ({it.prompt_tokens:,} tokens)", it.request.priority
        self.admissions.append(
            Admission(at_s, id(it.request), name, it.queued_s, priority, first_s)
        )

    def _note(self, at_s: float, lora: LoRASlots, cause: Cause, detail: str) -> None:
        wait = Wait(at_s, cause, detail, () if not cause or lora.has_room() else tuple(lora))
        if not self.waits or self.waits[-1][1:] != wait[1:]:
            self.waits.append(wait)


def id_of(sequence: Sequence) -> str:
    return sequence.request.request_id[:ID_CHARACTERS]


def full_step(executor: StepExecutor, tokens: int, chunks: tuple[Chunk, ...]) -> str:
    """Returns what filled a step with `tokens`; empty if the next sequence had fitted."""
    limits, head = executor.limits, executor.scheduler.waiting.head()
    budget, wanted = limits.max_num_batched_tokens, 1
    if tokens and head is not None and not limits.enable_chunked_prefill:
        wanted = head.prompt_tokens + head.written - head.computed
    if tokens + wanted <= budget:
        return ""
    largest = max(chunks, key=lambda it: it.tokens, default=None)
    prompt = largest and f"the prompt of {largest.request_id} ({largest.prompt_tokens:,} tokens)"
    return f"{budget:,} tokens a step went to {prompt or 'decodes'}"


def cause_of(
    queue: WaitingQueue[Any],
    paused: bool,
    running: int,
    places: int,
    full: str,
    blocks: Blocks[Any] | None,
) -> tuple[Cause, str]:
    """Returns why nothing leaves `queue`, in the order of the scheduler's checks; `full` is of its
    step.
    """
    if not queue.members:
        return "", ""
    if paused:
        return "paused", ""
    if running >= places:
        return "places", f"{places} of {places} taken"
    if full:
        return "budget", full
    head = queue.head()
    if head is None or blocks is None:
        return "adapter", ""
    needed = -(-(head.prompt_tokens + head.written) // blocks.block_size)
    return "blocks", f"the next request needs {needed:,} of {blocks.capacity:,}, and fewer are free"
