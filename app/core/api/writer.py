"""Response writers, which render the engine's outputs as an answer of an API family.

Start with `ResponseWriter`, the base of all. `ChunkWriter` is the base of chats and completions,
whose streams have a chunk for each token; `block_writer` has the base of Messages and Responses.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from app.core.api.choice_state import ChoiceState
from app.core.api.errors import as_stream_error
from app.core.api.identity import ResponseMeta, ResponseOptions
from app.core.base.clock.pause import paced
from app.core.base.metrics.recorder import STREAMING, phase_seconds
from app.core.engine.outputs import EngineOutput, Failed, Part, Started, Tokens
from app.core.protocol.chat import ChunkChoice
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import (
    ChunkHead,
    ChunkTail,
    ECTransferParams,
    KnownMetrics,
    KVTransferParams,
    PerRequestMetrics,
    Usage,
    UsageOverrides,
    WeightVersions,
    encode,
    usage_of,
)
from app.core.protocol.completions import CompletionChunkChoice
from app.core.server.http.response import DONE, error_event

if TYPE_CHECKING:
    from app.core.api.token_joiner import TokenJoiner
    from app.core.api.weight_spans import WeightSpans
    from app.core.base.metrics.recorder import ParserRuns
    from app.core.versions.shape import Shape

CHUNK_END = b"]}\n\n"
NOT_STARTED = Started(index=0, at_s=0.0)
MIN_RUN_S = 1e-4
"""Shortest time of a run in `tokens_per_second`: a run of vLLM always takes time."""

T = TypeVar("T", bound=Struct)
Options = TypeVar("Options", bound=ResponseOptions)


class ResponseWriter:
    """Writes the answer to one request, as a stream or whole.

    No other code knows the wire format of the API family. For a stream, call `chunk` with every
    output, then `closing`. For a whole answer, call `collect` with every output as it comes, then
    `body`.
    """

    started = NOT_STARTED
    """Start of the first choice in a stream, else of the last."""
    has_failed = False
    usage = UsageOverrides()
    blocks: Sequence[tuple[JsonObject, str]] | None = None
    """The content of a recorded reply, in place of the engine's text."""
    transfer: KVTransferParams | None = None
    encoded_media: ECTransferParams | None = None
    image = False
    """The reply ends with an image."""
    follows_rank = True
    """The header X-data-parallel-rank chooses the engine."""
    keeps_alive = False
    """Idle streams get comments (`sse-keep-alive-interval`)."""
    joiner: "TokenJoiner | None" = None
    """Joins tokens to events of several; None for an event per token."""
    parser_runs: "ParserRuns | None" = None
    """Counts runs of the parser of tool calls; None if none is run."""
    encode = staticmethod(encode)
    """Encodes structs with the fields that the version of vLLM has."""
    _weight_spans: "WeightSpans | None" = None
    """Versions of the weights, if the answer shows them."""
    _render_tokens: Callable[[Tokens], bytes]
    """Returns the events of some tokens."""
    closing: Callable[[], bytes]
    """Returns the end of the stream, after the last choice."""
    whole: Callable[[], Struct | JsonObject]
    """Returns the whole answer, once all outputs are collected."""

    def __init__(self, choices: int) -> None:
        self.choices = [*map(ChoiceState, [0] * choices)]
        """Their states, which begin with no tokens."""

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the server-sent events of `output`; empty when it shows nothing."""
        if type(output) is Tokens:
            if self.joiner is not None:
                return b"".join(map(self._render_tokens, self.joiner.join(output)))
            return self._render_tokens(output)
        if type(output) is Started:
            return self._render_start(output)
        assert type(output) is Failed
        self.has_failed = True
        return self._render_failure(output.error)

    def _render_start(self, output: Started) -> bytes:
        self.record_start(output)
        return b""

    def _render_failure(self, error: Exception) -> bytes:
        return error_event(as_stream_error(error))

    def _count_usage(
        self, prompt_tokens: int, choices: Sequence[ChoiceState], missing: None | UnsetType = UNSET
    ) -> Usage:
        tokens = 0
        for choice in choices:
            tokens += choice.tokens
        return usage_of(*self.usage.override(prompt_tokens, tokens), missing)

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """Returns the bytes before and after the text in the event of a plain token.

        Returns None where the events differ in more than their text.
        """
        return None

    def around_arguments(self, index: int, part: Part) -> tuple[bytes, bytes] | None:
        """Returns the bytes around the text in the event of a token within a tool call.

        Returns None where the events differ in more than their text.
        """
        return None

    @property
    def reported_cached_tokens(self) -> int:
        """Cached prompt tokens of the usage: a script's number, else the engine's."""
        override = self.usage.cached_tokens
        if override is None:
            return self.started.cached_tokens
        return override

    @property
    def reported_created_tokens(self) -> int:
        """Prompt tokens that are newly cached, in addition to `reported_cached_tokens`."""
        tokens = self.started.cached_tokens + self.started.created_tokens
        return max(0, tokens - self.reported_cached_tokens)

    def timing(
        self, metrics_type: type[PerRequestMetrics] = PerRequestMetrics
    ) -> PerRequestMetrics | None:
        """Returns the times of the only choice, or None for several choices."""
        if len(self.choices) != 1:
            return None
        [choice] = self.choices
        started = self.started
        metrics = metrics_type()
        if started is NOT_STARTED or not choice.ended_s:
            return metrics
        scheduled_s = started.at_s if started.scheduled_s is None else started.scheduled_s
        queue_s, prefill_s, decode_s = phase_seconds(
            scheduled_s if started.queued_s is None else started.queued_s,
            scheduled_s,
            first_s=started.at_s,
            last_s=choice.ended_s,
            now_s=choice.ended_s,
        )
        run_s = max(MIN_RUN_S, prefill_s + decode_s)
        metrics.time_to_first_token_ms = prefill_s * 1000
        metrics.generation_time_ms = decode_s * 1000
        metrics.queue_time_ms = queue_s * 1000
        if choice.tokens > 1:
            metrics.mean_itl_ms = decode_s / (choice.tokens - 1) * 1000
        metrics.tokens_per_second = choice.tokens / run_s
        return metrics

    def record_start(self, output: Started, keep_first: bool = True) -> None:
        """Records the start of the first choice for a stream, else of the last."""
        if self.started is NOT_STARTED or not keep_first:
            self.started = output

    def collect(self, output: EngineOutput) -> None:
        """Collects an output for the whole answer.

        Raises:
            Exception: the error of a failed choice.
        """
        if type(output) is Tokens:
            if self._weight_spans is not None:
                self._weight_spans.record(output, self.choices[output.index].tokens)
            self.choices[output.index].collect(output)
        elif type(output) is Started:
            self.record_start(output, keep_first=False)
        elif type(output) is Failed:
            raise output.error

    def _spans_of(self, index: int) -> WeightVersions:
        """Returns the versions of the weights that made a choice; None if they are not shown."""
        if self._weight_spans is None:
            return None
        return self._weight_spans.of_choice(index)

    def body(self) -> bytes:
        """Returns the whole answer as JSON, once all outputs are collected. May pause."""
        return self.encode(self.whole())

    def render_choices(self, render: Callable[[int, ChoiceState], T]) -> Sequence[T | Raw]:
        """Returns the result of `render` for the index and state of each choice.

        The results are encoded when there are several. Pauses between many.
        """
        if len(self.choices) == 1:
            return (render(0, self.choices[0]),)
        return [
            Raw(self.encode(render(index, choice)))
            for index, choice in paced(enumerate(self.choices))
        ]


class ChunkWriter(ResponseWriter, Generic[Options]):
    """Writes chats and completions.

    The chunks of plain tokens are constant but for their text, and are joined from bytes.
    """

    keeps_alive = True
    kind: str
    plain_text: "PlainChoice"
    _head = b""
    """Bytes that all chunks start with, up to the list of choices."""
    _render_plain_thoughts: Callable[[Tokens, int], bytes]
    _build_choice: Callable[
        [ChoiceState, Tokens, slice, bool], ChunkChoice | CompletionChunkChoice | None
    ]
    """Returns the choice of a chunk for a slice of the tokens; None when they show nothing.

    The last parameter is true for the last tokens; the caller adds the finish reason.
    """
    _choice_usage: Callable[[int], Usage]
    """Returns the usage of a choice while the stream runs."""
    _total_usage: Callable[[None | UnsetType], Usage]
    """Returns the usage of the answer; the argument stands for unknown fields."""

    def __init__(self, meta: ResponseMeta, options: Options, choices: int, plain: bool) -> None:
        # Sets the attribute of the base class, too, to save a call for each answer.
        self.choices = [*map(ChoiceState, [0] * choices)]
        self._meta = meta
        self._options = options
        self._plain = plain
        self.encode = options.shape.encode
        self._chunk_end = last_chunk_end(None, options.shape)
        if options.weights is not None:
            from app.core.api.weight_spans import WeightSpans  # few requests ask for them

            self._weight_spans = WeightSpans(options.weights, choices)

    def _render_start(self, output: Started) -> bytes:
        if self.started is NOT_STARTED:
            self._write_head()
        self.record_start(output)
        return b""

    def _write_head(self) -> None:
        """Writes the bytes that all chunks start with."""
        meta = self._meta
        head = encode(ChunkHead(meta.id, self.kind, meta.created, meta.model))
        self._head = b'data: %b,"choices":[' % head[:-1]

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """Returns the bytes before and after the text in the chunk of a plain token."""
        if not self._head or not self._plain:
            return None
        return self.plain_text.prefix(self._head, index), self.plain_text.end + self._chunk_end

    def _render_tokens(self, output: Tokens) -> bytes:
        """Returns the events of an output: plain tokens together, then each other one alone."""
        index = output.index
        part = output.part
        texts = output.texts
        plain_count = 0
        chunks: list[bytes] = []
        if self._weight_spans is not None:  # the version of the weights, before tokens are counted
            self._weight_spans.record(output, self.choices[index].tokens)
        if self.parser_runs is not None:
            in_call = part is not None and part.kind == "call"
            self.parser_runs[STREAMING, in_call] += max(1, len(output.ids))
        if self._plain and self.joiner is None and (part is None or part.kind == "reasoning"):
            plain_count = max(0, len(texts) - (output.finish is not None))
        if plain_count and part is None:
            self.choices[index].tokens += plain_count
            shown = texts[:plain_count]
            chunks.append(self._render_plain(self.plain_text, index, shown))
        elif plain_count:
            chunks.append(self._render_plain_thoughts(output, plain_count))
        for position in range(plain_count, max(len(texts), output.finish is not None)):
            chunks.append(self._render_token(output, position))
        return b"".join(chunks)

    def _render_plain(self, choice: "PlainChoice", index: int, texts: Sequence[str]) -> bytes:
        """Returns the chunks of some texts of the choice with this index."""
        if not texts:
            return b""
        prefix = choice.prefix(self._head, index)
        suffix = choice.end + self._chunk_end
        return prefix + (suffix + prefix).join(map(encode, texts)) + suffix

    def _render_token(self, output: Tokens, position: int) -> bytes:
        """Returns the chunk of the token at `position` in `output`.

        The last chunk has the fingerprint, unless a chunk with the stream's usage follows.
        """
        choice = self.choices[output.index]
        options = self._options
        is_last = position + 1 >= len(output.texts)
        # The text of a whole beam is a single text of many tokens.
        span = slice(position, None if is_last else position + 1)
        finish = None
        if is_last:
            finish = output.finish
        choice.tokens += len(output.ids[span])
        chunk_choice = self._build_choice(choice, output, span, finish is not None)
        if chunk_choice is None:
            return b""
        transfer: KVTransferParams | None = None
        fingerprint: str | None = None
        if finish is not None:
            transfer = self.transfer
            if not options.include_usage:
                fingerprint = self._meta.fingerprint
            choice.finish = finish
            choice.ended_s = output.at_s
            chunk_choice.finish_reason = self._finish_reason(choice)
            chunk_choice.stop_reason = finish.stop_reason
            chunk_choice.weight_versions = None
            if self._weight_spans is not None:
                chunk_choice.weight_versions = self._spans_of(output.index)
        end = self._chunk_end
        if options.continuous_usage or transfer is not None:
            tail = ChunkTail(kv_transfer_params=transfer)
            if options.continuous_usage:
                tail.usage = self._choice_usage(output.index)
            if fingerprint is not None:
                tail.system_fingerprint = fingerprint
            end = chunk_end(tail, options.shape)
        elif finish is not None:
            end = last_chunk_end(fingerprint, options.shape)
        return self._head + self.encode(chunk_choice) + end

    def _finish_reason(self, choice: ChoiceState) -> str:
        return choice.finish.reason

    def closing(self) -> bytes:
        """Returns the end of the stream: a chunk with the usage, if requested, and `[DONE]`."""
        options = self._options
        if not options.include_usage or self.has_failed:
            return DONE
        tail = ChunkTail(self._total_usage(UNSET), self._meta.signature)
        if options.metrics:
            tail.metrics = self.timing(KnownMetrics) or UNSET
        return self._head + chunk_end(tail, options.shape) + DONE

    def _build_answer(
        self, answer_type: Callable[..., T], render: Callable[[int, ChoiceState], Struct]
    ) -> T:
        meta = self._meta
        return answer_type(
            id=meta.id,
            created=meta.created,
            model=meta.model,
            choices=self.render_choices(render),
            usage=self._total_usage(None),
            system_fingerprint=meta.fingerprint,
            kv_transfer_params=self.transfer,
            metrics=self.timing() if self._options.metrics else None,
        )


class PlainChoice:
    """Choices of plain tokens, which differ in the index of the choice and in the text alone."""

    def __init__(self, choice: Struct, shape: "Shape") -> None:
        """Encodes `choice`, which has a `HOLE` in place of its index and its text."""
        self._before_index, self._before_text, self.end = shape.template(choice)

    def prefix(self, head: bytes, index: int) -> bytes:
        """Returns the bytes before the text of the choice with this index."""
        return b"%b%b%d%b" % (head, self._before_index, index, self._before_text)


@lru_cache(maxsize=4)
def last_chunk_end(fingerprint: str | None, shape: "Shape") -> bytes:
    """Returns the bytes after the choices of a chunk that shows no usage and no transfer.

    A chunk that is not the last one of its choice has no fingerprint.
    """
    tail = ChunkTail(kv_transfer_params=None)
    if fingerprint is not None:
        tail.system_fingerprint = fingerprint
    return chunk_end(tail, shape)


def chunk_end(tail: ChunkTail, shape: "Shape") -> bytes:
    """Returns the bytes after the choices of a chunk."""
    fields = shape.encode(tail)
    if fields == b"{}":
        return CHUNK_END
    return b"],%b\n\n" % fields[1:]
