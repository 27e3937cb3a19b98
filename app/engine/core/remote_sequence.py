"""A choice that an engine in another process computes; this side emits and counts its outputs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed

from app.base.metrics.recorder import Recorder
from app.engine.core.batch import Phase, SequenceStatus
from app.engine.core.errors import EngineError, EngineFailed, RequestRefused
from app.engine.core.outputs import Emit, Finish, LazySequence, Part, PartReader, Piece, TokenLogprob, Tokens
from app.engine.core.request import EngineRequest
from app.engine.core.sequence import COUNTED_AS, Sequence, Submission
from app.engine.core.wire import EngineCoreOutput, EngineCoreRequest, Sampling, WireLogprob

Names = Callable[[Listed[int]], Listed[str]]
"""Returns the text of each token id."""
BROKEN = "\N{REPLACEMENT CHARACTER}"


class RemoteSequence(Sequence):
    """A choice from its request to its end, whatever ends it."""

    __slots__ = ("_held", "_held_logprobs", "_leave", "_names", "_part", "_reader", "is_computed", "key")

    def __init__(
        self,
        request: EngineRequest,
        key: int,
        emit: Emit,
        recorder: Recorder,
        now: Callable[[], float],
        names: Names,
        reader: PartReader | None,
        leave: Callable[[RemoteSequence], None],
        submission: Submission,
    ) -> None:
        """Calls `leave` once, at the end of the choice. With a `reader` text is emitted by parts."""
        super().__init__(request, request.max_tokens, now, recorder, emit, submission)
        self.key = key
        self.is_computed = True
        """False once the engine has reported the end of the choice."""
        self._names, self._leave, self._reader = names, leave, reader
        self._held: list[int] = []
        """Token ids whose text the reader still keeps."""
        self._held_logprobs: list[TokenLogprob] = []
        self._part: Part | None = None

    def order(self) -> EngineCoreRequest:
        """Returns the request for the engine."""
        request = self.request
        return EngineCoreRequest(
            key=self.key,
            request_id=request.request_id,
            prompt_ids=list(request.prompt_ids),
            max_tokens=request.max_tokens,
            arrival_s=request.arrival_s,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=request.stop,
            stop_token_ids=tuple(request.stop_token_ids),
            include_stop=request.include_stop,
            seed=request.seed,
            sampling=request.sampling or Sampling(),
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            form=request.form,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )

    def status(self) -> SequenceStatus:
        """Reports QUEUED until the first token: the engine reports nothing earlier."""
        phase = Phase.QUEUED if self._first_s is None else Phase.DECODE
        return SequenceStatus(phase, self.prompt_tokens, 0, self._scheduled_s, self._first_s)

    def enter(self, soon: bool) -> None:
        """Does nothing: `RemoteEngine.submit` has sent the request."""

    def take(self, output: EngineCoreOutput) -> None:
        if self.over:
            return
        if not self.running:
            self._begin(output)
        ids = output.ids
        if ids:
            self._account(len(ids), output.at_s)
        self.preemptions = output.preemptions
        if output.finish is not None:
            self.is_computed = False
        if output.finish == "error" or output.finish == "timeout":
            text = output.error or "The request waited too long for its turn."
            error: EngineError = RequestRefused(text) if output.is_refused else EngineFailed(text)
            self.fail(error)
            return
        finish = None if output.finish is None else Finish(output.finish, output.stop_reason)
        logprobs = None if (wire := output.logprobs) is None else self._entries(wire)
        if self._reader is not None:
            self._read(self._reader, output, logprobs, finish)
        elif finish is None and logprobs is None and self._take_token is not None and len(ids) == 1:
            self._take_token(output.texts[0], ids[0], output.at_s)
        elif ids or finish is not None:
            self._emit(Tokens(self.request.index, output.texts, ids, output.at_s, logprobs, finish))
        if output.finish is not None and not self.over:
            self._end(COUNTED_AS[output.finish])

    def _begin(self, output: EngineCoreOutput) -> None:
        self.running = True
        self._scheduled_s = output.scheduled_s
        self.cached_tokens, self.created_tokens = output.cached_tokens, output.created_tokens
        self._queued_s = self._queued_s if output.queued_s is None else output.queued_s
        if output.finish in ("error", "timeout"):
            return  # only the failure is emitted
        wire = output.prompt_logprobs
        take = self._start(output.at_s, None if wire is None else self._prompt_entries(wire))
        if self._reader is None and output.logprobs is None and not self.over:
            self._take_token = take

    # Output by parts.

    def _read(
        self,
        reader: PartReader,
        output: EngineCoreOutput,
        logprobs: Listed[TokenLogprob] | None,
        finish: Finish | None,
    ) -> None:
        """Emits tokens through the reader; ids of kept text leave with the text that follows."""
        last = len(output.ids) - 1
        for place, (token_id, text) in enumerate(zip(output.ids, output.texts, strict=True)):
            self._held.append(token_id)
            if logprobs is not None:
                self._held_logprobs.append(logprobs[place])
            if place < last or finish is None:
                self._tell(reader.feed(text), output.at_s)
        if finish is not None:
            text = output.texts[last] if output.texts else ""
            self._tell([*reader.feed(text), *reader.finish()], output.at_s, finish)

    def _tell(self, pieces: Listed[Piece], at_s: float, finish: Finish | None = None) -> None:
        for part, text in pieces[:-1]:
            self._flush(text, part, at_s)
        if pieces:
            self._part, text = pieces[-1]
            self._flush(text, self._part, at_s, finish)
        elif finish is not None:
            self._flush("", self._part, at_s, finish)

    def _flush(self, text: str, part: Part | None, at_s: float, finish: Finish | None = None) -> None:
        """Emits `text` as the text of the last held token, or as an extra item if no token is held."""
        ids, self._held = self._held, []
        logprobs, self._held_logprobs = self._held_logprobs, []
        texts = [*[""] * (len(ids) - 1), text] if ids or text or part is not None else []
        self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs or None, finish, part))

    def _entries(self, entries: Listed[WireLogprob]) -> Listed[TokenLogprob]:
        return LazySequence(lambda place: self._entry(entries[place]), range(len(entries)))

    def _prompt_entries(self, entries: Listed[WireLogprob | None]) -> Listed[TokenLogprob | None]:
        def make(place: int) -> TokenLogprob | None:
            return None if (entry := entries[place]) is None else self._entry(entry)

        return LazySequence(make, range(len(entries)))

    def _entry(self, entry: WireLogprob) -> TokenLogprob:
        others = [(token_id, value) for token_id, value in entry.top if token_id != entry.token_id]
        ids = [entry.token_id, *(token_id for token_id, _ in others)]
        names = ["" if BROKEN in name else name for name in self._names(ids)]
        values = [entry.logprob, *(value for _, value in others)]
        top = list(zip(ids, names, values, strict=True))
        return TokenLogprob(entry.token_id, names[0], entry.logprob, top, entry.rank)

    def _withdraw(self) -> None:
        self._leave(self)
