"""Sequences whose prompt another engine has prefilled, or will decode.

`HandoffPart` has the common part of both kinds: `TimedHandoff` has its own latencies,
`SteppedHandoff` shares steps. A sequence may read blocks at its start, and hand over blocks at its
end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from app.core.engine.errors import EngineFailedError
from app.core.engine.reply_sequence import ReplySequence
from app.core.engine.stepped_sequence import SteppedSequence
from app.core.engine.timed_sequence import TimedSequence

if TYPE_CHECKING:
    from collections.abc import Sequence as ListOf

    from app.core.base.metrics.recorder import FinishReason
    from app.core.engine.outputs import TokenLogprob
    from app.core.engine.request import EngineRequest, Reply
    from app.core.engine.sequence import Handle
    from app.core.protocol.common import KVTransferParams
    from app.extensions.handoff.handoffs import Handoffs
    from app.extensions.handoff.reads import RemoteRead

LOAD_FAILED = "Internal server error"
"""vLLM's message for a request whose KV cache could not be read."""


class HandoffPart(ReplySequence):
    """Reads the blocks of its prompt, and hands over its own ones."""

    def __init__(
        self, handoffs: Handoffs, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        super().__init__(handoffs.executor, request, reply, handle)
        self.handoffs = handoffs
        self.address = cast("KVTransferParams | None", request.address)
        self.transfer_id = handoffs.dialect.transfer_id(request)
        """Id of the blocks that another engine reads; empty without one."""
        self.remote_decode = bool(self.transfer_id)
        self.read: RemoteRead | None = None
        """The read of the prompt's blocks; None before the engine has admitted the request."""

    def expect(self) -> RemoteRead:
        """Returns the read of the prompt's blocks, whose lease is extended from now on."""
        if self.read is None:
            self.read = self.handoffs.expect(self.request)
        return self.read

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
        self._show_blocks()
        super()._start(at_s, prompt_logprobs, is_plain)

    def _show_blocks(self) -> None:
        """Writes the numbers of the blocks into the answer; without a KV cache they have none."""
        if self.address is not None and self.blocks:
            self.address.remote_block_ids = (self.block_numbers(),)

    def _end(
        self, reason: FinishReason, counted: bool = True, error: Exception | None = None
    ) -> None:
        if self.transfer_id:
            if reason in self.handoffs.dialect.good_ends and self.tokens:
                self._show_blocks()
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
        self.holds_slot = True
        transfer_s = context.timing.time_to_first_token(tokens, remote=True)
        self.handoffs.reads.start(self.expect(), transfer_s, self._arrived)
        return True

    def _arrived(self, is_complete: bool) -> None:
        """Goes on with the blocks, or without."""
        if self.over:
            return
        context = self._context
        cache = context.cache
        self.due_s = context.clock.now()
        if not is_complete:
            if not self.load_failed():
                return
            self.due_s += context.timing.time_to_first_token(self.prompt_tokens, self.cached_tokens)
        if self._delays is not None:
            self.due_s += self._delays.get(0, 0.0)
        if cache is not None:
            self.computed = self.prompt_tokens
            cache.filled(self)
            cache.publish()
        context.wheel.add(self.due_s, self)


class SteppedHandoff(HandoffPart, SteppedSequence):
    """A choice in the steps of an engine."""

    def fetch(self, transfer_s: float) -> None:
        """Reads the blocks; the scheduler has assigned those that receive them."""
        self.handoffs.reads.start(self.expect(), transfer_s, self._arrived)

    def _arrived(self, is_complete: bool) -> None:
        """Returns the sequence to the scheduler, with the blocks or without."""
        if not self.over and (is_complete or self.load_failed()):
            self.handoffs.resume(self, is_complete)

    def _end(
        self, reason: FinishReason, counted: bool = True, error: Exception | None = None
    ) -> None:
        super()._end(reason, counted, error)
        self.handoffs.drop(self)
