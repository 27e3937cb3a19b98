"""Log of the causes of delays: waits, steps, admissions, preemptions, transfers.

A `DelayLog` is attached to an engine while the console or traces are on; without one nothing is
recorded. `explanation.py` reads the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from app.core.engine.batch import Batch, Blocks, LoRASlots
from app.core.engine.client import EngineClient
from app.core.engine.sequence import Sequence
from app.core.engine.sequence_pool import SequencePool
from app.core.engine.step_executor import StepExecutor
from app.core.engine.stepped_sequence import SteppedSequence
from app.core.engine.timed_sequence import TimedSequence
from app.core.engine.waiting_queue import WaitingQueue

Cause = Literal["", "places", "budget", "blocks", "adapter", "priority", "paused", "step"]
"""Lack of a waiting sequence, "" if unknown. `step`: the end of the steps under way."""
CauseAndDetail = tuple[Cause, str]

MAX_STEPS = 27_000
"""Maximum logged steps (five minutes of 11 ms each), and maximum prompts in all logged steps."""
MAX_CHUNKS = 64
"""Maximum logged prompts of a step."""
MAX_ENTRIES = 10_000
"""Maximum entries of any other kind."""
STEP_BYTES = 200
"""Estimated memory of a step without its chunks."""
CHUNK_BYTES = 300
"""Estimated memory of a chunk."""
ENTRY_BYTES = 300
"""Memory of any other entry; measured for admissions."""
MAX_ID_LENGTH = 128
"""Maximum logged characters of a request id, which clients may choose."""


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
    """A step and its contents; moments are seconds."""

    start_s: float
    end_s: float
    prefill_tokens: int
    decodes: int
    """Tokens of decodes, with drafts."""
    sequences: int
    chunks: tuple[Chunk, ...]


class Wait(NamedTuple):
    """Cause of all waits from `at_s` until the next entry.

    `adapters` are the loaded adapters, if all are in use.
    """

    at_s: float
    cause: Cause
    detail: str = ""
    adapters: tuple[str, ...] = ()


class Admission(NamedTuple):
    """A sequence began to run, or ran again after a preemption."""

    at_s: float
    key: int
    name: str
    """Request id and size of the prompt."""
    queued_s: float
    priority: int
    first_s: float
    """Time of the first token; infinity if unknown."""


class Interruption(NamedTuple):
    """Start of a preemption, which ends with an admission, or a transfer until `until_s`."""

    at_s: float
    key: int
    detail: str
    until_s: float = inf


class DelayLog:
    """Log of one engine; the oldest entries are dropped.

    Moments are seconds of the engine's clock.
    """

    limit_bytes = MAX_STEPS * (STEP_BYTES + CHUNK_BYTES) + 3 * MAX_ENTRIES * ENTRY_BYTES

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.steps_made = 0
        """Number of steps logged so far, with dropped ones."""
        self.waits: deque[Wait] = deque(maxlen=MAX_ENTRIES)
        self.admissions: deque[Admission] = deque(maxlen=MAX_ENTRIES)
        self.interruptions: deque[Interruption] = deque(maxlen=MAX_ENTRIES)
        self._computed: dict[SteppedSequence, int] = {}
        """Computed tokens of unfinished prompts."""
        self._fetching: set[SteppedSequence] = set()
        self._chunk_count = 0

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the log."""
        entries = len(self.waits) + len(self.admissions) + len(self.interruptions)
        return (
            len(self.steps) * STEP_BYTES + self._chunk_count * CHUNK_BYTES + entries * ENTRY_BYTES
        )

    def attach(self, engine: EngineClient) -> DelayLog:
        """Records `engine` from now on.

        An engine in another process does not report causes, so nothing is recorded.
        """
        executor = getattr(engine, "executor", None)
        if isinstance(executor, StepExecutor):
            executor.watch_step = partial(self._record_step, executor)
            executor.watch_stall = partial(self._record_waits, executor)
            executor.scheduler.watch_preempted = partial(self._record_preemption, executor)
        elif isinstance(executor, SequencePool):
            executor.watch_queue = partial(self._record_queue, executor)
            executor.watch_start = self._record_start
        return self

    def recent(self, made: int) -> list[Step]:
        """Returns the logged steps after the first `made`, in order."""
        start = max(0, len(self.steps) - (self.steps_made - made))
        return list(islice(self.steps, start, None))

    # Calls from shared steps.

    def _record_step(
        self, executor: StepExecutor, batch: Batch[SteppedSequence], start_s: float, end_s: float
    ) -> None:
        decodes = len(batch.decodes) + sum(drafted.drafts for drafted in batch.drafts.values())
        chunks: tuple[Chunk, ...] = ()
        if batch.prefills:
            chunks = tuple(islice(self._chunks(executor, batch), MAX_CHUNKS))
        step = Step(
            start_s=start_s,
            end_s=end_s,
            prefill_tokens=batch.tokens - decodes,
            decodes=decodes,
            sequences=batch.sequences,
            chunks=chunks,
        )
        self.steps.append(step)
        self.steps_made += 1
        self._chunk_count += len(chunks)
        while len(self.steps) > MAX_STEPS or self._chunk_count > MAX_STEPS:
            self._chunk_count -= len(self.steps.popleft().chunks)
        for sequence in batch.admitted:
            self._record_admission(sequence, executor.now_s, inf)
        self._record_waits(executor, batch.tokens, chunks)

    def _chunks(self, executor: StepExecutor, batch: Batch[SteppedSequence]) -> Iterator[Chunk]:
        """Yields the prompts of this step, unfinished ones first, with their computed tokens."""
        previous = self._computed
        prefilling = executor.scheduler.prefilling
        self._computed = {sequence: sequence.computed for sequence in prefilling}
        for sequence in (*prefilling, *batch.prefilled):
            start = 0 if sequence.preemptions else sequence.cached_tokens + sequence.loaded
            tokens = sequence.computed - previous.get(sequence, start)
            if tokens > 0:
                yield Chunk(
                    key=id(sequence.request),
                    request_id=short_id(sequence),
                    tokens=tokens,
                    prompt_tokens=sequence.prompt_tokens,
                    is_last=sequence not in self._computed,
                )

    def _record_waits(
        self, executor: StepExecutor, tokens: int = 0, chunks: tuple[Chunk, ...] = ()
    ) -> None:
        """Records the starts of transfers, and why a step with `tokens` admits no others."""
        scheduler = executor.scheduler
        now_s = executor.now_s
        if self._fetching or scheduler.fetching:
            for until_s, _, sequence in executor.transfers:
                if sequence not in self._fetching:
                    transfer = Interruption(now_s, id(sequence.request), "", until_s)
                    self.interruptions.append(transfer)
            self._fetching = set(scheduler.fetching)
        queue = scheduler.waiting
        cause: CauseAndDetail | None = None
        if queue.members:
            places = executor.limits.max_num_seqs
            cause = place_cause(scheduler.paused, len(scheduler.running), places)
            if cause is None:
                cause = budget_cause(executor, tokens, chunks)
            if cause is None:
                cause = block_cause(queue, executor.blocks)
        self._record_cause(now_s, queue.lora, cause)

    def _record_preemption(
        self, executor: StepExecutor, victim: SteppedSequence, needy: SteppedSequence
    ) -> None:
        detail = f"{short_id(needy)} needed its blocks"
        running = executor.scheduler.running
        if needy is victim and running:
            largest = max(running, key=attrgetter("held"))
            detail = f"{short_id(largest)} held most blocks"
        self.interruptions.append(Interruption(executor.now_s, id(victim.request), detail))

    # Calls from the slots of sequences with latencies of their own.

    def _record_start(self, sequence: TimedSequence) -> None:
        if sequence.scheduled_s is not None:
            self._record_admission(sequence, sequence.scheduled_s, sequence.due_s)

    def _record_queue(self, pool: SequencePool, now_s: float) -> None:
        cause: CauseAndDetail | None = None
        if pool.queue.members:
            cause = place_cause(pool.paused, pool.running, pool.slots)
            if cause is None:
                cause = block_cause(pool.queue, pool.context.cache)
        self._record_cause(now_s, pool.queue.lora, cause)

    def _record_admission(self, sequence: Sequence, at_s: float, first_s: float) -> None:
        admission = Admission(
            at_s=at_s,
            key=id(sequence.request),
            name=f"{short_id(sequence)} ({sequence.prompt_tokens:,} tokens)",
            queued_s=sequence.queued_s,
            priority=sequence.request.priority,
            first_s=first_s,
        )
        self.admissions.append(admission)

    def _record_cause(self, at_s: float, lora: LoRASlots, cause: CauseAndDetail | None) -> None:
        """Records why nothing leaves the queue; None if the queue is empty."""
        wait = Wait(at_s, "")
        if cause is not None:
            wait = Wait(at_s, *cause, adapters=() if lora.has_room() else tuple(lora))
        if not self.waits or self.waits[-1][1:] != wait[1:]:
            self.waits.append(wait)


def short_id(sequence: Sequence) -> str:
    """Returns the request id of a sequence, shortened for the log."""
    return sequence.request.request_id[:MAX_ID_LENGTH]


def place_cause(paused: bool, running: int, places: int) -> CauseAndDetail | None:
    """Returns why no place is given to a waiting sequence; None if that is not the cause."""
    if paused:
        return "paused", ""
    if running >= places:
        return "places", f"{places} of {places} taken"
    return None


def budget_cause(
    executor: StepExecutor, tokens: int, chunks: tuple[Chunk, ...]
) -> CauseAndDetail | None:
    """Returns what filled a step with `tokens`; None if the next sequence would have fit."""
    limits = executor.limits
    head = executor.scheduler.waiting.head()
    budget = limits.max_num_batched_tokens
    wanted = 1
    if tokens and head is not None and not limits.enable_chunked_prefill:
        wanted = head.prompt_tokens + head.written - head.computed
    if tokens + wanted <= budget:
        return None
    user = "decodes"
    if chunks:
        largest = max(chunks, key=attrgetter("tokens"))
        user = f"the prompt of {largest.request_id} ({largest.prompt_tokens:,} tokens)"
    return "budget", f"{budget:,} tokens a step went to {user}"


def block_cause(queue: WaitingQueue[Any], blocks: Blocks[Any] | None) -> CauseAndDetail:
    """Returns why the next sequence of `queue` does not run although it would have a place."""
    head = queue.head()
    if head is None or blocks is None:
        return "adapter", ""
    needed = -(-(head.prompt_tokens + head.written) // blocks.block_size)
    return "blocks", f"the next request needs {needed:,} of {blocks.capacity:,}, and fewer are free"
