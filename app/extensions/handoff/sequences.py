"""Sequences whose prompt another engine has prefilled, or will decode.

`HandoffPart` has the common part of both kinds: `TimedHandoff` has its own latencies,
`SteppedHandoff` shares steps. A sequence may read blocks at its start, and hand over blocks at its
end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from app.core.engine.batch import Phase, SequenceStatus
from app.core.engine.errors import EngineFailedError
from app.core.engine.reply_sequence import ReplySequence
from app.core.engine.stepped_sequence import SteppedSequence
from app.core.engine.timed_sequence import TimedSequence
from app.extensions.handoff.dialects import EarlyDialect, Progress
from app.extensions.handoff.links import transferred_blocks
from app.extensions.handoff.peers import PeerRead

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from app.core.base.metrics.recorder import FinishReason
    from app.core.engine.outputs import TokenLogprob
    from app.core.engine.request import EngineRequest, Reply
    from app.core.engine.sequence import Handle
    from app.extensions.handoff.handoffs import Handoffs
    from app.extensions.handoff.reads import Finish, RemoteRead

LOAD_FAILED = "Internal server error"
"""vLLM's message for a request whose KV cache could not be read."""


class HandoffPart(ReplySequence):
    """Reads the blocks of its prompt, and hands over its own ones."""

    def __init__(
        self, handoffs: Handoffs, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        super().__init__(handoffs.executor, request, reply, handle)
        self.handoffs = handoffs
        self.transfer_id = handoffs.dialect.transfer_id(request)
        """Id of the blocks that another engine reads; empty without one."""
        self.remote_decode = bool(self.transfer_id) and handoffs.dialect.holds_blocks
        if handoffs.dialect.reads(request):
            self.remote = True
            self.fetched_tokens = self.prompt_tokens
        self.read: RemoteRead | None = None
        """The read of the prompt's blocks; None before the engine has admitted the request."""

    def expect(self) -> RemoteRead:
        """Returns the read of the prompt's blocks, whose lease is extended from now on."""
        if self.read is None:
            self.read = self.handoffs.expect(self.request)
        return self.read

    def start_read(self, transfer_s: float, finish: Finish) -> None:
        """Starts the read of the prompt's blocks; calls `finish` later."""
        read = self.expect()
        dialect = self.handoffs.dialect
        if isinstance(dialect, EarlyDialect):
            keys: list[bytes] = []
            if self._context.cache is not None and self.prompt.hashes is not None:
                keys = self.prompt.hashes[: self._max_blocks]
            dialect.prepare(read, self.request, keys)
        self.handoffs.reads.start(read, transfer_s, finish)

    def read_ended(self, is_complete: bool) -> bool:
        """Takes the result of the read; returns whether the sequence goes on.

        `remote` is true afterwards if nothing remains to be computed.
        """
        if self.handoffs.dialect.loads_parts:
            self._load_blocks(is_complete)
            return True
        if is_complete and not self.handoffs.dialect.counts_transfers:
            missing_tokens = self.prompt_tokens - self.cached_tokens
            self._recorder.looked_up_in_store(missing_tokens, self.fetched_tokens, tier="p2p")
        return is_complete or self.load_failed()

    @property
    def has_all_blocks(self) -> bool:
        """True if a read of whole blocks was complete: the last tokens cost no prefill."""
        missing_tokens = self.prompt_tokens - self.cached_tokens - self.fetched_tokens
        return self.handoffs.dialect.loads_parts and missing_tokens <= self.handoffs.block_size

    @property
    def _max_blocks(self) -> int:
        """Most blocks that a read can bring: the last token is always computed."""
        return (self.prompt_tokens - 1) // self.handoffs.block_size

    def _load_blocks(self, is_complete: bool) -> None:
        """Counts the blocks that have arrived; those of the pod's own store may be more."""
        size = self.handoffs.block_size
        blocks = 0
        if is_complete:
            blocks = self._max_blocks
            if isinstance(self.read, PeerRead) and self.read.blocks is not None:
                blocks = min(self.read.blocks, blocks)
        fetched_tokens = max(0, blocks * size - self.cached_tokens)
        tier = "p2p"
        cache = self._context.cache
        if cache is not None and cache.store is not None:
            stored_tokens = cache.store.find(self.prompt, self.cached_tokens)
            if stored_tokens > fetched_tokens:
                fetched_tokens = stored_tokens
                tier = cache.store.tier
            cache.store.keep(self.prompt)
            if self.caches:
                whole_tokens = self.prompt_tokens // size * size
                self.created_tokens = whole_tokens - self.cached_tokens - fetched_tokens
        missing_tokens = self.prompt_tokens - self.cached_tokens
        self._recorder.looked_up_in_store(missing_tokens, fetched_tokens, tier)
        self.fetched_tokens = fetched_tokens
        self.remote = False

    def load_failed(self) -> bool:
        """Takes the failure of the read; returns whether the sequence goes on by itself."""
        missing_tokens = self.prompt_tokens - self.cached_tokens
        self._recorder.looked_up_in_store(missing_tokens, hits=0, tier="")
        self.remote = False
        self.fetched_tokens = 0
        if not self.handoffs.recomputes:
            self.fail(EngineFailedError(LOAD_FAILED))
            return False
        cache = self._context.cache
        if cache is not None and self.caches:
            size = cache.block_size
            self.created_tokens = self.prompt_tokens // size * size - self.cached_tokens
        return True

    def _start(
        self, at_s: float, prompt_logprobs: ListOf[TokenLogprob | None] | None, is_plain: bool
    ) -> None:
        self._complete_answer()
        self._send_chunks()
        super()._start(at_s, prompt_logprobs, is_plain)

    def _send_chunks(self) -> None:
        """Copies the prompt to its receiver, before the answer: a decode may follow at once."""
        for part in self.handoffs.parts:
            receiver = part.receiver(self.request)
            if receiver is not None:
                self.handoffs.send_chunks(receiver, self.prompt)

    def _complete_answer(self) -> None:
        """Writes the numbers of the blocks, and other figures, into the answer."""
        if self.request.address is None or not self._ids:
            return
        progress = Progress(self.block_numbers(), self._ids[0], self.fetched_tokens)
        for part in self.handoffs.parts:
            part.complete(self.request, progress)

    def _end(
        self, reason: FinishReason, counted: bool = True, error: Exception | None = None
    ) -> None:
        if self.transfer_id:
            if reason in self.handoffs.dialect.good_ends and self.tokens:
                self._complete_answer()
                self.handoffs.hold(self, self.transfer_id)
            else:
                self.handoffs.early_reads.give_up(self.transfer_id)
        super()._end(reason, counted, error)
        if self.read is not None:
            self.handoffs.reads.abandon(self.read)


class TimedHandoff(HandoffPart, TimedSequence):
    """A choice on its own timeline, which has its slot while it reads."""

    def start(self) -> bool:
        """Starts with a slot; the first token comes after the blocks."""
        request = self.request
        context = self._context
        cache = context.cache
        tokens = self.prompt_tokens
        cached = 0
        if cache is not None:
            cached = cache.find(self, tokens)
        size = 1 if cache is None else cache.block_size
        if not self.remote or cached * size < request.cache_hit_threshold * tokens:
            return super().start()
        if self.created_future is not None and not self.claim_future(self.created_future):
            return False
        self.scheduled_s = context.clock.now() if self.has_waited else request.arrival_s
        if self.adapter is not None:
            self._recorder.adapter_moved(self, self.adapter, "running")
        if cache is not None:
            cache.begin(self, cached, -(-tokens // size) - cached)
        self.running = True
        transfer_s = context.timing.time_to_first_token(tokens, remote=True)
        self.start_read(transfer_s, self._arrived)
        return True

    def status(self) -> SequenceStatus:
        """Returns the progress of the sequence."""
        status = super().status()
        if self.remote and status.phase is Phase.PREFILL:
            return replace(status, phase=Phase.TRANSFER)
        return status

    def _arrived(self, is_complete: bool) -> None:
        """Goes on with the blocks, or without."""
        if self.over:
            return
        context = self._context
        cache = context.cache
        self.due_s = context.clock.now()
        if not self.read_ended(is_complete):
            return
        present_tokens = self.cached_tokens + self.fetched_tokens
        if not self.remote and not self.has_all_blocks:
            self.due_s += context.timing.time_to_first_token(self.prompt_tokens, present_tokens)
        if self._delays is not None:
            self.due_s += self._delays.get(0, 0.0)
        if cache is not None:
            self.computed = self.prompt_tokens
            cache.filled(self)
            cache.publish()
        context.wheel.add(self.due_s, self)


class SteppedHandoff(HandoffPart, SteppedSequence):
    """A choice in the steps of an engine."""

    def fetch(self) -> None:
        """Reads the blocks; the scheduler has assigned those that receive them."""
        self.start_read(self._transfer_s(), self._arrived)

    def _transfer_s(self) -> float:
        """Returns the seconds until the blocks have arrived, if their transfer begins now.

        The transfers from an engine wait for each other. Where a read finds its source later, it
        waits for none.
        """
        context = self._context
        timing = context.timing
        size = self.handoffs.block_size
        tokens = transferred_blocks(self, size) * size
        transfer_s = timing.time_to_first_token(tokens, remote=True)
        source = self.expect().source
        if source is None or timing.has_constant_transfer:
            return transfer_s
        now_s = context.clock.now()
        link = (source.host, source.port)
        return self.handoffs.links.begin(link, now_s, sending_s=transfer_s) - now_s

    def _arrived(self, is_complete: bool) -> None:
        """Returns the sequence to the scheduler, with the blocks or without."""
        if not self.over and self.read_ended(is_complete):
            self.handoffs.resume(self, is_complete=self.remote)

    def _end(
        self, reason: FinishReason, counted: bool = True, error: Exception | None = None
    ) -> None:
        super()._end(reason, counted, error)
        self.handoffs.drop(self)
