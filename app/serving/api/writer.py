"""Base of the response writers, which render the engine's outputs as an answer of an API family.

Start with `ResponseWriter`. `chunk_writer` and `block_writer` hold the bases of the streaming
families.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from app.base.clock.pause import Slices
from app.engine.core.outputs import EngineOutput, Failed, Started, Tokens
from app.serving.api.choice_state import ChoiceState
from app.serving.api.errors import as_stream_error
from app.serving.api.logprobs import SLICE, SomeEntries
from app.serving.http.response import error_event
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import (
    ECTransferParams,
    KVTransferParams,
    PerRequestMetrics,
    Usage,
    UsageOverrides,
    encode,
)

T = TypeVar("T", bound=Struct)


class ResponseWriter:
    """Writes the answer to one request, as a stream or whole.

    No other code knows the wire format of the API family. For a stream, call `chunk` with every
    output, then `closing`. For a whole answer, call `collect` with every output as it comes, then
    `body`.
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
    _render_tokens: Callable[[Tokens], bytes]
    """Returns the events of some tokens."""
    closing: Callable[[], bytes]
    """Returns the end of the stream, after the last choice."""
    whole: Callable[[], Struct | JsonObject]
    """Returns the whole answer, once all outputs are collected."""

    def __init__(self, choices: int) -> None:
        if choices == 1:
            self.choices = [ChoiceState()]
        else:
            self.choices = [ChoiceState() for _ in range(choices)]

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the server-sent events of `output`; empty when it shows nothing."""
        if type(output) is Tokens:
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
        prompt_tokens, tokens = self.usage.told(prompt_tokens, tokens)
        return Usage(
            prompt_tokens=prompt_tokens,
            total_tokens=prompt_tokens + tokens,
            completion_tokens=tokens,
            prompt_tokens_details=missing,
            completion_tokens_details=missing,
        )

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """Returns the bytes before and after the text in the event of a plain token.

        Returns None where the events differ in more than their text.
        """
        return None

    @property
    def reported_cached_tokens(self) -> int:
        """Cached prompt tokens of the usage: a script's number, else the engine's."""
        override = self.usage.cached_tokens
        return self.cached_tokens if override is None else override

    @property
    def reported_created_tokens(self) -> int:
        """Prompt tokens that are newly cached, in addition to `reported_cached_tokens`."""
        created_tokens = 0 if self.started is None else self.started.created_tokens
        return max(0, self.cached_tokens + created_tokens - self.reported_cached_tokens)

    def timing(self, missing: None | UnsetType = None) -> PerRequestMetrics | None:
        """Returns the times of the only choice, or None for several choices.

        Unknown times are `missing`.
        """
        if len(self.choices) != 1:
            return None
        [choice] = self.choices
        started = self.started
        metrics = PerRequestMetrics(
            time_to_first_token_ms=missing,
            generation_time_ms=missing,
            queue_time_ms=missing,
            mean_itl_ms=missing,
            tokens_per_second=missing,
            speculative_decoding=missing,
        )
        if started is None or not choice.ended_s:
            return metrics
        decode_s = max(0.0, choice.ended_s - started.at_s)
        run_s = started.prefill_s + decode_s
        metrics.time_to_first_token_ms = started.prefill_s * 1000
        metrics.generation_time_ms = decode_s * 1000
        metrics.queue_time_ms = started.queue_s * 1000
        if choice.tokens > 1:
            metrics.mean_itl_ms = decode_s / (choice.tokens - 1) * 1000
        if run_s > 0:
            metrics.tokens_per_second = choice.tokens / run_s
        return metrics

    def record_start(self, output: Started, keep_first: bool = True) -> None:
        """Records the start of the first choice for a stream, else of the last."""
        if self.started is None or not keep_first:
            self.started = output
            self.cached_tokens = output.cached_tokens
            self.prompt_logprobs = output.prompt_logprobs

    def collect(self, output: EngineOutput) -> None:
        """Collects an output for the whole answer.

        Raises:
            Exception: the error of a failed choice.
        """
        if type(output) is Tokens:
            self.choices[output.index].collect(output)
        elif type(output) is Started:
            self.record_start(output, keep_first=False)
        elif type(output) is Failed:
            raise output.error

    def body(self) -> bytes:
        """Returns the whole answer as JSON, once all outputs are collected. May pause."""
        return encode(self.whole())

    def render_choices(self, render: Callable[[int, ChoiceState], T]) -> Sequence[T | Raw]:
        """Returns the result of `render` for the index and state of each choice.

        The results are encoded when there are several. Pauses between many.
        """
        if len(self.choices) == 1:
            return (render(0, self.choices[0]),)
        slices = Slices(SLICE)
        rendered: list[T | Raw] = []
        for index, choice in enumerate(self.choices):
            rendered.append(Raw(encode(render(index, choice))))
            slices.spend(1 + choice.tokens)
        return rendered


class WholeWriter(ResponseWriter):
    """Writes whole answers that a function makes of the choices."""

    def __init__(self, choices: int, answer: Callable[[Sequence[ChoiceState]], Struct]) -> None:
        super().__init__(choices)
        self._answer = answer

    def whole(self) -> Struct:
        """Returns the whole answer, once all outputs are collected."""
        return self._answer(self.choices)
