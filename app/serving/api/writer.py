"""Writing of answers, once for all families: state of choices, events of streams."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from app.base.clock.pause import Slices
from app.engine.core.outputs import (
    EngineOutput,
    Failed,
    Finish,
    Part,
    Started,
    TokenLogprob,
    Tokens,
)
from app.serving.api.errors import as_stream_error
from app.serving.api.identity import ResponseMeta, ResponseOptions
from app.serving.api.logprobs import SLICE, SomeEntries
from app.serving.http.response import DONE, error_event
from app.serving.protocol.chat import ChunkChoice
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import (
    ChunkHead,
    ChunkTail,
    ECTransferParams,
    KVTransferParams,
    PerRequestMetrics,
    Usage,
    UsageOverrides,
    encode,
    template,
)
from app.serving.protocol.completions import CompletionChunkChoice

UNFINISHED = Finish("abort")


NewId = Callable[[Part | None], str]


class Segment(Struct):
    """Consecutive tokens of one part of the reply; `part` None is the reply's own text."""

    part: Part | None
    id: str = ""
    texts: list[str] = []
    logprobs: list[Sequence[TokenLogprob]] = []
    """Log probabilities as they came; may be computed only on access."""

    @property
    def kind(self) -> str:
        return "text" if self.part is None else self.part.kind

    @property
    def text(self) -> str:
        return "".join(self.texts)


class ChoiceState(Struct):
    """State of one choice: its counts and, where an answer needs it, its content."""

    tokens: int = 0
    reasoning_tokens: int = 0
    finish: Finish = UNFINISHED
    ended_s: float = 0.0
    """Moment when the last token was due."""
    called: bool = False
    ids: list[int] = []
    logprobs: list[Sequence[TokenLogprob]] = []
    segments: list[Segment] = []

    def count(self, output: Tokens) -> None:
        self.ids += output.ids
        self.tokens += len(output.ids)
        if output.finish is not None:
            self.finish, self.ended_s = output.finish, output.at_s
        if output.part is not None and output.part.kind == "reasoning":
            self.reasoning_tokens += len(output.ids)

    def take(self, output: Tokens) -> None:
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        if output.part is None or not self.cut_off(output):
            self.add(output)

    def add(self, output: Tokens, new_id: NewId | None = None) -> Segment | None:
        """Adds the tokens to their segment, perhaps a new one; returns None when they show nothing."""
        self.count(output)
        part = output.part
        segment = self.current(part)
        if segment is None:
            begins = output.logprobs is not None if part is None else part.name != ""
            if not begins and not any(output.texts):
                return None
            segment = self.begin(part, "" if new_id is None else new_id(part))
        segment.texts += output.texts
        return segment

    def cut_off(self, output: Tokens, new_id: NewId | None = None) -> bool:
        """True for tokens of a call that was cut off: in a whole answer their reply is a text."""
        part = output.part
        if part is None or not part.raw:
            return False
        self.count(output)
        segment = self.current(None)
        if segment is None or segment.texts != [part.raw]:
            self.called = False
            self.segments = [each for each in self.segments if each.kind in ("reasoning", "image")]
            self.begin(None, "" if new_id is None else new_id(None)).texts.append(part.raw)
        return True

    def current(self, part: Part | None) -> Segment | None:
        """Returns the segment that tokens of `part` continue; None when they begin another one."""
        segment = self.segments[-1] if self.segments else None
        return segment if segment is not None and segment.part == part else None

    def begin(self, part: Part | None, own_id: str = "") -> Segment:
        segment = Segment(part, own_id)
        self.segments.append(segment)
        if part is not None and part.kind == "call":
            self.called = True
        return segment

    def said(self) -> dict[str, str]:
        """Returns the reply's text of each kind; "text" is always there."""
        said = {"text": ""}
        for segment in self.segments:
            said[segment.kind] = said.get(segment.kind, "") + segment.text
        return said


T = TypeVar("T", bound=Struct)


class ResponseWriter:
    """Writes one answer to one request, as a stream or whole. No other code knows a family's wire
    format.

    A stream: `chunk` for every output; then `closing`.
    A whole answer: `take` for every output as it comes; then `body`.
    """

    started: Started | None = None
    """Start of the first choice in a stream, else of the last."""
    cached_tokens = 0
    prompt_logprobs: SomeEntries | None = None
    has_failed = False
    usage = UsageOverrides()
    transfer: KVTransferParams | None = None
    encoded_media: ECTransferParams | None = None
    keeps_alive = False
    """Idle streams get comments (`sse-keep-alive-interval`)."""
    _tokens: Callable[[Tokens], bytes]
    """Returns the events of some tokens."""
    closing: Callable[[], bytes]
    """Returns the end of the stream, after the last choice."""
    whole: Callable[[], Struct | JsonObject]
    """Returns the whole answer, once all outputs are taken."""

    def __init__(self, choices: int) -> None:
        self.choices = [ChoiceState()] if choices == 1 else [ChoiceState() for _ in range(choices)]

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the server-sent events of `output`; empty when it shows nothing."""
        if type(output) is Tokens:
            return self._tokens(output)
        if type(output) is Started:
            return self._start(output)
        assert type(output) is Failed
        self.has_failed = True
        return self._failure(output.error)

    def _start(self, output: Started) -> bytes:
        self.begin(output)
        return b""

    def _failure(self, error: Exception) -> bytes:
        return error_event(as_stream_error(error))

    def _usage_of(
        self, prompt_tokens: int, choices: Sequence[ChoiceState], missing: None | UnsetType = UNSET
    ) -> Usage:
        tokens = (
            choices[0].tokens if len(choices) == 1 else sum([choice.tokens for choice in choices])
        )
        prompt_tokens, tokens = self.usage.override(prompt_tokens, tokens)
        return Usage(prompt_tokens, prompt_tokens + tokens, tokens, missing, missing)

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """Returns the bytes around the text in the event of a plain token; None for other events."""
        return None

    @property
    def told_cached(self) -> int:
        told = self.usage.cached_tokens
        return self.cached_tokens if told is None else told

    def timing(self, missing: None | UnsetType = None) -> PerRequestMetrics | None:
        """Returns the times of the only choice, with `missing` for unknown ones; None for several
        choices.
        """
        if len(self.choices) != 1:
            return None
        [choice], started = self.choices, self.started
        if started is None or not choice.ended_s:
            return PerRequestMetrics(*[missing] * 6)
        decode_s, later = max(0.0, choice.ended_s - started.at_s), choice.tokens - 1
        run_s = started.prefill_s + decode_s
        return PerRequestMetrics(
            started.prefill_s * 1000,
            decode_s * 1000,
            started.queue_s * 1000,
            decode_s / later * 1000 if later > 0 else missing,
            choice.tokens / run_s if run_s > 0 else missing,
            missing,
        )

    @property
    def told_created(self) -> int:
        """Prompt tokens that are newly cached, beside `told_cached`."""
        created = 0 if self.started is None else self.started.created_tokens
        return max(0, self.cached_tokens + created - self.told_cached)

    def begin(self, output: Started, keeps_first: bool = True) -> None:
        """Keeps the start of the first choice for a stream, else of the last."""
        if self.started is None or not keeps_first:
            self.started, self.cached_tokens = output, output.cached_tokens
            self.prompt_logprobs = output.prompt_logprobs

    def take(self, output: EngineOutput) -> None:
        if type(output) is Tokens:
            self.choices[output.index].take(output)
        elif type(output) is Started:
            self.begin(output, keeps_first=False)
        elif type(output) is Failed:
            raise output.error

    def body(self) -> bytes:
        """Returns the whole JSON answer, once all outputs are taken; pauses where it is long."""
        return encode(self.whole())

    def each_choice(self, make: Callable[[int, ChoiceState], T]) -> Sequence[T | Raw]:
        """Returns the result of `make` for each choice and its number, encoded when there are
        several.
        """
        if len(self.choices) == 1:
            return (make(0, self.choices[0]),)
        turns, made = Slices(SLICE), list[T | Raw]()
        for index, choice in enumerate(self.choices):
            made.append(Raw(encode(make(index, choice))))
            turns.spend(1 + choice.tokens)
        return made


class WholeWriter(ResponseWriter):
    def __init__(self, choices: int, answer: Callable[[Sequence[ChoiceState]], Struct]) -> None:
        super().__init__(choices)
        self._answer = answer

    def whole(self) -> Struct:
        return self._answer(self.choices)


class BlockWriter(ResponseWriter):
    """Writes the answer to one request: content blocks of Messages, items of Responses.

    A stream opens a block where another part shows something, and numbers blocks from 0.
    """

    _begin_block: Callable[[Segment], bytes]
    _texts: Callable[[Segment, Tokens], bytes]
    _end_block: Callable[[Segment], bytes]

    def __init__(self, new_id: Callable[[], str]) -> None:
        super().__init__(1)
        self._new_id = new_id
        self._open: Segment | None = None
        self._index = -1

    def _tokens(self, output: Tokens) -> bytes:
        segment = self._open
        if segment is not None and output.part is segment.part:
            # Nearly every output of a paced stream comes here.
            self.choices[0].count(output)
            segment.texts += output.texts
            return self._texts(segment, output)
        segment = self._add(output)
        if segment is None or segment is self._open:
            return b"" if segment is None else self._texts(segment, output)
        end, self._open = self._close(), segment
        self._index += 1
        return b"".join((end, self._begin_block(segment), self._texts(segment, output)))

    def _close(self) -> bytes:
        segment, self._open = self._open, None
        return b"" if segment is None else self._end_block(segment)

    def take(self, output: EngineOutput) -> None:
        if type(output) is not Tokens:
            super().take(output)
        elif not self.choices[0].cut_off(output, self._id_of):
            self._add(output)

    def _add(self, output: Tokens) -> Segment | None:
        """Adds the tokens to their block and returns it; None when they show nothing, as images."""
        if output.part is not None and output.part.kind == "image":
            self.choices[0].count(output)
            return None
        return self.choices[0].add(output, self._id_of)

    def _id_of(self, part: Part | None) -> str:
        return self._new_id()


def named_event(name: str, fields: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(fields))


Options = TypeVar("Options", bound=ResponseOptions)


class ChunkWriter(ResponseWriter, Generic[Options]):
    """Writes chats and completions:

    a chunk for each token; plain ones are constant but for their text.
    """

    keeps_alive = True
    kind: str
    plain_text: "PlainChoice"
    _head = b""
    _texts: Sequence[bytes] = ()
    """Beginning of each choice's plain chunks, up to the text."""
    _plain_calls = False
    """True where tokens in the midst of a call have constant chunks but for their text, or none
    without.
    """
    _call: Callable[[Tokens, Part], bytes]
    _plain_thoughts: Callable[[Tokens, int], bytes]
    _shown: Callable[[ChoiceState, Tokens, slice, bool], ChunkChoice | CompletionChunkChoice | None]
    """Returns the tokens of a slice, without the end of their choice; None when they show nothing.
    """
    _usage: Callable[[int], Usage]
    """Returns the usage of a choice in the midst of a stream."""
    _whole_usage: Callable[[None | UnsetType], Usage]
    """Returns the usage of an answer, with the given value for unknown fields."""

    def __init__(self, meta: ResponseMeta, options: Options, choices: int, plain: bool) -> None:
        super().__init__(choices)
        self._meta, self._options, self._plain = meta, options, plain
        self._parsed: Callable[[bool, bool, int], None] | None = None
        """See `ChatResponseOptions.parsed`."""

    def begin(self, output: Started, keeps_first: bool = True) -> None:
        """Writes the bytes that all chunks begin with, once for a stream."""
        if self.started is None and keeps_first:
            meta = self._meta
            head = encode(ChunkHead(meta.id, self.kind, meta.created, meta.model))
            self._head = b'data: %b,"choices":[' % head[:-1]
            self._texts = (
                self.plain_text.begins(self._head, len(self.choices)) if self._plain else ()
            )
        super().begin(output, keeps_first)

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        return (self._texts[index], self.plain_text.end) if self._texts else None

    def _tokens(self, output: Tokens) -> bytes:
        index, part, texts, number, chunks = (
            output.index,
            output.part,
            output.texts,
            0,
            list[bytes](),
        )
        if self._parsed is not None:
            self._parsed(True, part is not None and part.kind == "call", max(1, len(output.ids)))
        if self._plain and (part is None or part.kind == "reasoning"):
            number = max(0, len(texts) - (output.finish is not None))
        if number and part is None:
            self.choices[index].tokens += number
            chunks.append(self.plain_text.events(self._texts[index], texts[:number]))
        elif number:
            chunks.append(self._plain_thoughts(output, number))
        if part is not None and part.kind == "call" and self._plain_calls:
            return self._call(output, part)
        for i in range(number, max(len(texts), output.finish is not None)):
            chunks.append(self._special(output, i))
        return b"".join(chunks)

    def _special(self, output: Tokens, i: int) -> bytes:
        """Returns the chunk of token `i`; the last one is signed, unless the stream's usage
        follows.
        """
        choice, options, end = self.choices[output.index], self._options, END
        is_last = i + 1 >= len(output.texts)
        of = slice(i, None if is_last else i + 1)  # a whole beam is one text of many tokens
        finish = output.finish if is_last else None
        choice.tokens += len(output.ids[of])
        shown = self._shown(choice, output, of, finish is not None)
        if shown is None:
            return b""
        if finish is not None:
            choice.finish, choice.ended_s = finish, output.at_s
            shown.finish_reason, shown.stop_reason = self._finish_reason(choice), finish.stop_reason
        signed = finish is not None and not options.include_usage
        if options.continuous_usage or signed:
            usage = self._usage(output.index) if options.continuous_usage else UNSET
            end = chunk_end(ChunkTail(usage, self._meta.signature if signed else UNSET))
        return self._head + encode(shown) + end

    def _finish_reason(self, choice: ChoiceState) -> str:
        return choice.finish.reason

    def closing(self) -> bytes:
        options = self._options
        if not options.include_usage or self.has_failed:
            return DONE
        timing = (self.timing(UNSET) or UNSET) if options.metrics else UNSET
        tail = ChunkTail(self._whole_usage(UNSET), self._meta.signature, metrics=timing)
        return self._head + chunk_end(tail) + DONE

    def _answer(self, kind: Callable[..., T], make: Callable[[int, ChoiceState], Struct]) -> T:
        meta, options = self._meta, self._options
        return kind(
            id=meta.id,
            created=meta.created,
            model=meta.model,
            choices=self.each_choice(make),
            usage=self._whole_usage(None),
            system_fingerprint=meta.fingerprint,
            kv_transfer_params=self.transfer,
            metrics=self.timing() if options.metrics else None,
        )


class PlainChoice:
    def __init__(self, choice: Struct) -> None:
        """`choice` has holes for number and text."""
        self._before_index, self._before_text, end = template(choice)
        self.end = end + END

    def begins(self, head: bytes, choices: int) -> list[bytes]:
        first = head + self._before_index
        return [b"%b%d%b" % (first, index, self._before_text) for index in range(choices)]

    def events(self, begin: bytes, texts: Sequence[str]) -> bytes:
        return begin + (self.end + begin).join(map(encode, texts)) + self.end if texts else b""


END = b"]}\n\n"


def chunk_end(tail: ChunkTail) -> bytes:
    rest = encode(tail)
    return END if rest == b"{}" else b"],%b\n\n" % rest[1:]
