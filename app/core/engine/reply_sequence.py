"""A sequence whose reply is decided at arrival; the base class of both simulated kinds."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from itertools import chain

from app.core.base.metrics.recorder import FinishReason
from app.core.engine.executor import SequenceExecutor
from app.core.engine.outputs import Finish, Part, Tokens
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sequence import COUNTED_AS, Handle, Sequence

CACHE_THRESHOLD = Finish("cache_threshold")


class ReplySequence(Sequence):
    """A choice with a known reply. Due tokens of one part are sent in one output."""

    __slots__ = (
        "_context",
        "_delays",
        "_ids",
        "_part",
        "_part_end",
        "_parts_done",
        "_position",
        "_reply",
        "_taken_part",
        "_texts",
    )
    fills_cache = True
    """True where the sequence fills blocks of the KV cache itself, token by token.

    False in shared steps.
    """

    def __init__(
        self, executor: SequenceExecutor, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        context = self._context = executor.context
        super().__init__(
            request,
            len(reply.ids),
            now=context.clock.now,
            recorder=context.recorder,
            handle=handle,
            leave=executor.leave,
        )
        if request.remote_prefill:
            self.fetched_tokens = self.prompt_tokens
        self._reply = reply
        self._texts = reply.texts
        self._ids = reply.ids
        self._delays: dict[int, float] | None = None
        """Deliberate delays in seconds, by the number of the delayed token."""
        if request.delays or reply.delays:
            self._delays = {}
            for token, seconds in chain(request.delays, reply.delays):
                self._delays[token] = self._delays.get(token, 0.0) + seconds
        self._position = 0
        """Number of emitted texts."""
        self._parts_done = 0
        self._part_end = len(reply.texts)
        self._part: Part | None = None
        self._taken_part: Part | None = None
        """The part whose tokens `_take_token` receives."""
        if reply.spans:
            self._part_end, self._part = reply.spans[0]

    def fits(self) -> bool:
        """Returns whether all blocks of the prompt fit into the KV cache now."""
        cache = self._context.cache
        tokens = self.prompt_tokens
        return cache is None or cache.fits(self, tokens, cache.find(self, tokens))

    def reply_ids(self, start: int, stop: int) -> ListOf[int]:
        """Returns the ids of reply tokens `start` to `stop` (exclusive)."""
        return self._ids[start:stop]

    def text(self, whole: bool = True) -> str:
        """Returns the reply so far; unless `whole`, without thoughts, calls and images."""
        if whole:
            return "".join(self._texts[: self._position])
        return self._reply.content(self._position)

    def _emit_until(self, stop: int, at_s: float, part: Part | None) -> bool:
        """Emits and counts tokens up to `stop`, due at `at_s`, all of `part`.

        Returns whether more tokens follow.
        """
        start = self._position
        reply = self._reply
        cache = self._context.cache
        self._position = stop
        texts = self._texts[start:stop]
        ids = self._ids[start:stop]
        logprobs = None if reply.logprobs is None else reply.logprobs[start:stop]
        finish = None if stop < len(self._texts) else reply.finish
        if cache is not None and self.fills_cache:
            if ids:  # without a free block the reply continues anyway: nothing is preempted
                cache.append(self, len(ids))
            cache.publish()
        self._account(len(ids), at_s)
        take_token = self._take_token
        if stop == 1 and take_token is not None and part is None and finish is None:
            take_token(texts[0], ids[0], at_s)
            return True
        take_token = self._emit(
            Tokens(
                index=self.request.index,
                texts=texts,
                ids=ids,
                at_s=at_s,
                logprobs=logprobs,
                finish=finish,
                part=part,
            )
        )
        if finish is not None and not self.over:
            self._end(COUNTED_AS[finish.reason])
        elif take_token is not None and logprobs is None and self._delays is None:
            self._take_token = take_token
            self._taken_part = part
        return finish is None

    def empty(self) -> None:
        """Replaces the reply by an empty one: less of the prompt is cached than requested."""
        self._reply = Reply((), (), CACHE_THRESHOLD)
        self._texts = ()
        self._ids = ()
        self._part_end = 0
        self._part = None

    def _to_next_part(self) -> bool:
        """Moves to the next part of the reply; returns whether the part is an image."""
        self._parts_done += 1
        self._part_end, self._part = self._reply.spans[self._parts_done]
        return self._part is not None and self._part.kind == "image"

    def _end(
        self, reason: FinishReason, counted: bool = True, error: Exception | None = None
    ) -> None:
        super()._end(reason, counted, error)
        if reason == "abort":
            # The timer wheel may hold the sequence for a while.
            self._texts = ()
            self._ids = ()
