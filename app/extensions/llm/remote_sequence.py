"""A sequence that runs in an engine in another process."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import Any, Protocol

from app.core.base.clock.clock import Clock
from app.core.base.metrics.recorder import Recorder
from app.core.engine.batch import Phase, SequenceStatus
from app.core.engine.choice_request import ChoiceRequest
from app.core.engine.errors import EngineFailedError, RequestRejectedError
from app.core.engine.outputs import Finish, LazySequence, Part, TokenLogprob, Tokens
from app.core.engine.request import EngineRequest
from app.core.engine.sequence import COUNTED_AS, Handle, Sequence
from app.extensions.llm.wire import EngineCoreOutput, EngineCoreRequest, WireLogprob
from app.extensions.tool_calls.parsing import TextReader

NamesOf = Callable[[ListOf[int]], ListOf[str]]
"""Returns the texts of token ids, each token alone."""
ReaderOf = Callable[[EngineRequest], TextReader | None]
"""Returns the parser of a request's text into parts; None for a text without parts."""
BROKEN = "\N{REPLACEMENT CHARACTER}"


class SequenceOwner(Protocol):
    """Part of an engine that a `RemoteSequence` calls."""

    clock: Clock
    recorder: Recorder
    names: NamesOf
    reader_of: ReaderOf

    def leave(self, choice: Any) -> None:
        """Removes a choice, at its end."""


class RemoteSequence(Sequence):
    """A choice from its request to its end, whatever ends it."""

    __slots__ = (
        *("_content", "_held", "_held_logprobs", "_names", "_part", "_reader"),
        *("is_computed", "key"),
    )
    in_steps = True

    def __init__(
        self, engine: SequenceOwner, request: EngineRequest, key: int, handle: Handle
    ) -> None:
        """Emits text by parts if the engine has a reader for the request."""
        super().__init__(
            request,
            request.max_tokens,
            now=engine.clock.now,
            recorder=engine.recorder,
            handle=handle,
            leave=engine.leave,
        )
        self.key = key
        self.is_computed = True
        """False once the engine has reported the end of the choice."""
        self._names = engine.names
        self._reader = engine.reader_of(request)
        self._held: list[int] = []
        """Token ids whose text the reader has not returned yet."""
        self._held_logprobs: list[TokenLogprob] = []
        self._part: Part | None = None
        self._content: list[str] = []
        """Texts without thoughts and calls, if the sequence is watched."""

    def text(self, whole: bool = True) -> str:
        """Returns the reply so far, without thoughts and calls."""
        return "".join(self._content)

    def order(self, is_awaited: bool) -> EngineCoreRequest:
        """Returns the message that starts the choice in the engine."""
        request = self.request
        shared = {name: getattr(request, name) for name in ChoiceRequest.__struct_fields__}
        shared["prompt_ids"] = list(request.prompt_ids)
        return EngineCoreRequest(key=self.key, is_awaited=is_awaited, **shared)

    def status(self) -> SequenceStatus:
        """Reports QUEUED until the first token: the engine reports nothing earlier."""
        phase = Phase.DECODE
        if self._first_s is None:
            phase = Phase.QUEUED
        return SequenceStatus(
            phase=phase,
            computed=self.prompt_tokens,
            held=0,
            scheduled_s=self.scheduled_s,
            first_s=self._first_s,
        )

    def take(self, output: EngineCoreOutput) -> None:
        """Emits and counts the result of a step."""
        if self.over:
            return
        if not self.running:
            self._begin(output)
        if output.ids:
            self._account(len(output.ids), output.at_s)
        self.preemptions = output.preemptions
        if output.finish is not None:
            self.is_computed = False
        if output.finish == "error" or output.finish == "timeout":
            message = output.error or "The request waited too long for its turn."
            if output.is_refused:
                self.fail(RequestRejectedError(message))
            else:
                self.fail(EngineFailedError(message))
            return
        finish = None
        if output.finish is not None:
            finish = Finish(output.finish, output.stop_reason)
        self._emit_output(output, finish)
        if output.finish is not None and not self.over:
            self._end(COUNTED_AS[output.finish])

    def _begin(self, output: EngineCoreOutput) -> None:
        if self.created_future is not None:
            self.created_future.set_running_or_notify_cancel()
        self.running = True
        self.scheduled_s = output.scheduled_s
        self.cached_tokens = output.cached_tokens
        self.created_tokens = output.created_tokens
        if output.queued_s is not None:
            self.queued_s = output.queued_s
        if output.finish in ("error", "timeout"):
            return  # only the failure is emitted
        prompt_logprobs: ListOf[TokenLogprob | None] | None = None
        entries = output.prompt_logprobs
        if entries is not None:

            def entry_at(place: int) -> TokenLogprob | None:
                entry = entries[place]
                if entry is None:
                    return None
                return self._entry(entry)

            prompt_logprobs = LazySequence(entry_at, range(len(entries)))
        is_plain = self._reader is None and output.logprobs is None
        self._start(output.at_s, prompt_logprobs, is_plain)

    def _emit_output(self, output: EngineCoreOutput, finish: Finish | None) -> None:
        logprobs = None
        if output.logprobs is not None:
            logprobs = [self._entry(entry) for entry in output.logprobs]
        if self._reader is not None:
            self._read(self._reader, output, logprobs, finish)
            return
        if self.watches:
            self._content += output.texts
        ids = output.ids
        is_plain = finish is None and logprobs is None and len(ids) == 1
        if is_plain and self._take_token is not None:
            self._take_token(output.texts[0], ids[0], output.at_s)
        elif ids or finish is not None:
            tokens = Tokens(
                index=self.request.index,
                texts=output.texts,
                ids=ids,
                at_s=output.at_s,
                logprobs=logprobs,
                finish=finish,
            )
            self._emit(tokens)

    def _read(
        self,
        reader: TextReader,
        output: EngineCoreOutput,
        logprobs: ListOf[TokenLogprob] | None,
        finish: Finish | None,
    ) -> None:
        """Emits tokens through the reader; ids of held text are sent with the text that follows."""
        if len(output.ids) != len(output.texts):
            raise ValueError("the engine sent different numbers of texts and tokens")
        texts = output.texts or [""]
        for place, text in enumerate(texts):
            if place < len(output.ids):
                self._held.append(output.ids[place])
            if logprobs is not None:
                self._held_logprobs.append(logprobs[place])
            pieces = list(reader.feed(text))
            is_last_text = place == len(texts) - 1
            if finish is None or not is_last_text:
                for part, piece in pieces:
                    self._emit_piece(part, piece, output.at_s)
                continue
            pieces += reader.finish()
            if not pieces:
                pieces.append((self._part, ""))
            *earlier, (last_part, last_piece) = pieces
            for part, piece in earlier:
                self._emit_piece(part, piece, output.at_s)
            self._emit_piece(last_part, last_piece, output.at_s, finish)

    def _emit_piece(
        self, part: Part | None, piece: str, at_s: float, finish: Finish | None = None
    ) -> None:
        """Emits a text with the held ids, whose last one it belongs to."""
        ids = self._held
        logprobs = self._held_logprobs
        self._held = []
        self._held_logprobs = []
        self._part = part
        if part is None and self.watches:
            self._content.append(piece)
        texts: list[str] = []
        if ids or piece or part is not None:
            # Without a held token the text is an extra item.
            texts = [*[""] * (len(ids) - 1), piece]
        tokens = Tokens(
            index=self.request.index,
            texts=texts,
            ids=ids,
            at_s=at_s,
            logprobs=logprobs or None,
            finish=finish,
            part=part,
        )
        self._emit(tokens)

    def _entry(self, entry: WireLogprob) -> TokenLogprob:
        ids = [entry.token_id]
        values = [entry.logprob]
        for token_id, value in entry.top:
            if token_id != entry.token_id:
                ids.append(token_id)
                values.append(value)
        names = ["" if BROKEN in name else name for name in self._names(ids)]
        top = list(zip(ids, names, values, strict=True))
        return TokenLogprob(entry.token_id, names[0], entry.logprob, top, rank=entry.rank)
