"""One choice that an engine in a process of its own computes: what comes of it, emitted and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.engine.client import Emit, TakeToken
from app.engine.errors import EngineError, EngineFailed, RequestRefused
from app.engine.lazy import LazySequence
from app.engine.outputs import Finish, Part, PartReader, Piece, Started, TokenLogprob, Tokens
from app.engine.request import EngineRequest, Outcome, Watch, notify
from app.engine.sequence import ABORT, COUNTED_AS, emit_failure
from app.engine.standing import Phase, Standing
from app.engine.wire import Said, WireLogprob
from app.metrics.recorder import Recorder
from app.metrics.sequences import FinishedSequence, FinishReason

Names = Callable[[Sequence[int]], Sequence[str]]
"""The texts of tokens."""
BROKEN = "\N{REPLACEMENT CHARACTER}"


class RemoteChoice:
    """From its order to its end, however that comes; `leave` is told then, and may have it aborted there.

    With a `reader` its text is told by parts.
    """

    def __init__(
        self,
        request: EngineRequest,
        key: int,
        emit: Emit,
        recorder: Recorder,
        now: Callable[[], float],
        names: Names,
        reader: PartReader | None,
        leave: Callable[[RemoteChoice, bool], None],
        ended: Callable[[RemoteChoice], tuple[int, int]],
    ) -> None:
        """`leave` is given whether the engine computes it still.

        `ended` is called once, when it is over; it gives `choices` and `longest` of `FinishedSequence`.
        """
        self.request, self.key = request, key
        self.tokens = 0
        self.over = False
        self.watches: Iterable[Watch] = ()
        self._emit, self._recorder, self._now, self._names, self._leave = emit, recorder, now, names, leave
        self._ended = ended
        self._reader = reader
        self._held: list[int] = []
        """Tokens whose text the reader keeps."""
        self._held_logprobs: list[TokenLogprob] = []
        self._part: Part | None = None
        self._take_token: TakeToken | None = None
        self._begun = False
        self._cached_tokens = self._preemptions = 0
        self._queued_s = request.arrival_s
        self._scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def running(self) -> bool:
        """The engine has begun it."""
        return self._begun

    @property
    def preemptions(self) -> int:
        """How often it lost its blocks, as far as the engine has told."""
        return self._preemptions

    def standing(self) -> Standing:
        """How it stands now, as far as the engine has told: it tells of the first token, and of all after."""
        phase = Phase.QUEUED if self._first_s is None else Phase.DECODE
        return Standing(phase, len(self.request.prompt_ids), 0, self._scheduled_s, self._first_s)

    def blocks_from(self, first: int) -> list[int]:
        """The engine keeps its blocks to itself."""
        return []

    @property
    def text(self) -> str:
        """What was said is not kept here."""
        return ""

    def enter(self, soon: bool) -> None:
        """It has been ordered with the others of its request."""

    def take(self, said: Said) -> None:
        """What a step has brought."""
        if self.over:
            return
        if not self._begun:
            self._begin(said)
        ids = said.ids
        if ids:
            self._count(len(ids), said.at_s)
        self._preemptions = said.preemptions
        if said.finish == "error" or said.finish == "timeout":
            self._fail_for(said)
            return
        finish = None if said.finish is None else Finish(said.finish, said.stop_reason)
        logprobs = None if said.logprobs is None else self._entries(said.logprobs)
        if self._reader is not None:
            self._read(self._reader, said, logprobs, finish)
        elif finish is None and logprobs is None and self._take_token is not None and len(ids) == 1:
            self._take_token(said.texts[0], ids[0], said.at_s)
        elif ids or finish is not None:
            self._emit(Tokens(self.request.index, said.texts, ids, said.at_s, logprobs, finish))
        if said.finish is not None and not self.over:
            self._end(COUNTED_AS[said.finish])

    def fail(self, error: Exception, is_computed: bool = True) -> None:
        """It broke, or what came of it could not be taken."""
        if not self.over:
            self._end("error", is_computed)
            emit_failure(self.request, error, self._emit)

    def abort(self) -> None:
        """See `Choice.abort`."""
        if not self.over:
            self._end("abort", is_computed=True, counted=False)

    def interrupt(self, counted: bool = False) -> None:
        """See `Choice.interrupt`. What the engine itself ends comes as `Said`, and is counted."""
        if self.over:
            return
        self.abort()
        index, now_s = self.request.index, self._now()
        if not self._begun:
            self._emit(Started(index, now_s))
        self._emit(Tokens(index, (), (), now_s, None, ABORT))

    def _begin(self, said: Said) -> None:
        self._begun = True
        self._scheduled_s, self._cached_tokens = said.scheduled_s, said.cached_tokens
        self._queued_s = self._queued_s if said.queued_s is None else said.queued_s
        if said.finish in ("error", "timeout"):
            return  # nothing is told but that
        entries = None if said.prompt_logprobs is None else self._prompt_entries(said.prompt_logprobs)
        began_s = said.scheduled_s or said.at_s
        queue_s, prefill_s = max(0.0, began_s - self._queued_s), max(0.0, said.at_s - began_s)
        index, cached, created = self.request.index, said.cached_tokens, said.created_tokens
        take = self._emit(Started(index, said.at_s, cached, entries, queue_s, prefill_s, created))
        if self._reader is None and said.logprobs is None and not self.over:
            self._take_token = take

    def _fail_for(self, said: Said) -> None:
        text = said.error or "The request waited too long for its turn."
        error: EngineError = RequestRefused(text) if said.is_refused else EngineFailed(text)
        self.fail(error, is_computed=False)

    # By parts.

    def _read(
        self, reader: PartReader, said: Said, logprobs: Sequence[TokenLogprob] | None, finish: Finish | None
    ) -> None:
        """Tokens whose text is kept are told with the text that comes of it."""
        last = len(said.ids) - 1
        for place, (token_id, text) in enumerate(zip(said.ids, said.texts, strict=True)):
            self._held.append(token_id)
            if logprobs is not None:
                self._held_logprobs.append(logprobs[place])
            if place < last or finish is None:
                self._tell(reader.feed(text), said.at_s)
        if finish is not None:
            text = said.texts[last] if said.texts else ""
            self._tell([*reader.feed(text), *reader.finish()], said.at_s, finish)

    def _tell(self, pieces: Sequence[Piece], at_s: float, finish: Finish | None = None) -> None:
        """The last of `pieces` has the end, if it has come."""
        for part, text in pieces[:-1]:
            self._flush(text, part, at_s)
        if pieces:
            self._part, text = pieces[-1]
            self._flush(text, self._part, at_s, finish)
        elif finish is not None:
            self._flush("", self._part, at_s, finish)

    def _flush(self, text: str, part: Part | None, at_s: float, finish: Finish | None = None) -> None:
        """Emit `text` with the tokens that were held, the last of which has it; without any it is extra."""
        ids, self._held = self._held, []
        logprobs, self._held_logprobs = self._held_logprobs, []
        texts = [*[""] * (len(ids) - 1), text] if ids or text or part is not None else []
        self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs or None, finish, part))

    def _entries(self, entries: Sequence[WireLogprob]) -> Sequence[TokenLogprob]:
        return LazySequence(lambda place: self._entry(entries[place]), range(len(entries)))

    def _prompt_entries(self, entries: Sequence[WireLogprob | None]) -> Sequence[TokenLogprob | None]:
        def made(place: int) -> TokenLogprob | None:
            entry = entries[place]
            return None if entry is None else self._entry(entry)

        return LazySequence(made, range(len(entries)))

    def _entry(self, entry: WireLogprob) -> TokenLogprob:
        """Itself first, then the alternatives without it."""
        others = [(token_id, value) for token_id, value in entry.top if token_id != entry.token_id]
        ids = [entry.token_id, *(token_id for token_id, _ in others)]
        names = ["" if BROKEN in name else name for name in self._names(ids)]
        values = [entry.logprob, *(value for _, value in others)]
        top = list(zip(ids, names, values, strict=True))
        return TokenLogprob(entry.token_id, names[0], entry.logprob, top, entry.rank)

    # What is counted.

    def _count(self, tokens: int, at_s: float) -> None:
        recorder = self._recorder
        if self._first_s is None:
            self._first_s = at_s
            request, prompt_tokens = self.request, len(self.request.prompt_ids)
            recorder.prefilled(at_s - request.arrival_s, prompt_tokens, self._cached_tokens, at_s)
            if tokens > 1:
                recorder.decoded(tokens - 1, 0.0, at_s)
        else:
            recorder.decoded(tokens, (at_s - self._last_s) / tokens, at_s)
        self.tokens += tokens
        self._last_s = at_s

    def _end(self, reason: FinishReason, is_computed: bool = False, counted: bool = True) -> None:
        self.over = True
        self._take_token = None
        end_s = self._now()
        choices, longest = self._ended(self)
        if counted:
            self._recorder.sequence_finished(self._finished(reason, end_s, choices, longest))
        else:
            self._recorder.aborted()
        if self.watches:
            notify(self.watches, self._outcome(reason, end_s))
        self._leave(self, is_computed)

    def _finished(self, reason: FinishReason, end_s: float, choices: int, longest: int) -> FinishedSequence:
        request = self.request
        scheduled_s = end_s if self._scheduled_s is None else self._scheduled_s
        first_s = scheduled_s if self._first_s is None else self._first_s
        return FinishedSequence(
            reason,
            prompt_tokens=len(request.prompt_ids),
            generation_tokens=self.tokens,
            cached_tokens=self._cached_tokens,
            max_tokens=request.max_tokens,
            queue_s=max(0.0, scheduled_s - self._queued_s),
            prefill_s=max(0.0, first_s - scheduled_s),
            decode_s=max(0.0, self._last_s - first_s),
            e2e_s=end_s - request.arrival_s,
            preemptions=self._preemptions,
            choices=choices,
            longest=longest,
        )

    def _outcome(self, reason: str, end_s: float) -> Outcome:
        return Outcome(
            reason=reason,
            scheduled_s=self._scheduled_s,
            first_token_s=self._first_s,
            last_token_s=None if self._first_s is None else self._last_s,
            ended_s=end_s,
            cached_tokens=self._cached_tokens,
            tokens=self.tokens,
        )
