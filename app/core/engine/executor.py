"""A bounded `concurrent.futures.Executor` that runs the sequences of an in-process engine."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import gevent
from msgspec import Struct

from app.core.base.clock.clock import Clock
from app.core.base.clock.timer_wheel import TimerWheel
from app.core.base.metrics.recorder import Recorder
from app.core.engine.request import SequenceOutcome
from app.core.engine.sequence import Sequence
from app.core.engine.timing import PerRequestTiming

if TYPE_CHECKING:
    from app.core.engine.batch import SchedulerRules
    from app.core.engine.kvcache.cache import KVCacheManager
    from app.core.engine.scheduling_policy import MakePolicies

SHUTDOWN_POLL_S = 0.01
"""Interval, in seconds, at which `shutdown` checks that all sequences have ended."""
AFTER_SHUTDOWN = "cannot schedule new sequences after shutdown"


class SequenceContext(Struct, frozen=True):
    """Objects shared by all sequences of an engine in this process."""

    clock: Clock
    wheel: TimerWheel
    timing: PerRequestTiming
    recorder: Recorder
    cache: KVCacheManager | None
    rules: SchedulerRules
    policies: ListOf[MakePolicies] = ()


class SequenceExecutor(Executor):
    """A worker pool of `max-num-seqs` places, whose work items are sequences.

    A place is not a thread, which would only sleep: the timer wheel wakes the sequence that is due.
    Subclasses: `SequencePool` for sequences on their own timelines, `StepExecutor` for sequences
    that share steps.
    """

    context: SequenceContext
    is_shut_down = False
    running: int
    """Number of sequences that have a place."""

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for a place."""
        raise NotImplementedError

    def submit(  # type: ignore[override]  # the work is a sequence, not a function
        self, sequence: Any, /, *, later: bool = False
    ) -> Future[SequenceOutcome]:
        """Runs `sequence` once a place is free, and returns the future of its outcome.

        The future gets the outcome when the sequence ends, or its error when it fails. For `later`
        and errors see `enqueue`.
        """
        future: Future[SequenceOutcome] = sequence.future
        self.enqueue(sequence, later=later)
        return future

    def enqueue(self, sequence: Any, *, later: bool = False) -> None:
        """Does the same as `submit` without creating a future, for streams.

        With `later` the sequence does not start in this turn of the event loop.

        Raises:
            RuntimeError: The executor is shut down.
        """
        raise NotImplementedError

    def leave(self, sequence: Any) -> None:
        """Removes a sequence, at its end."""
        raise NotImplementedError

    def not_started(self) -> Iterable[Sequence]:
        """Returns the unfinished sequences that have not got a place yet."""
        raise NotImplementedError

    def is_idle(self) -> bool:
        """Returns whether no sequence runs or waits."""
        return not self.running and not self.waiting

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Rejects new sequences; see `concurrent.futures.Executor.shutdown`.

        With `cancel_futures`, sequences that have not started end with reason `abort`, and their
        futures are cancelled. With `wait` the call returns when all other sequences have ended.
        """
        self.is_shut_down = True
        if cancel_futures:
            for sequence in list(self.not_started()):
                sequence.cancel()
        while wait and not self.is_idle():
            gevent.sleep(SHUTDOWN_POLL_S)
