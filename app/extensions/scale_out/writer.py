"""Answers of `/inference/v1/generate`: token ids, on request with their text."""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import UNSET, Raw, UnsetType

from app.core.api.choice_state import ChoiceState
from app.core.api.identity import ResponseMeta, ResponseOptions
from app.core.api.logprobs import ALL, TokenNames, prompt_entries, rendered
from app.core.api.weight_spans import Weights, WeightSpans
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import TokenLogprob, Tokens
from app.core.protocol import common
from app.core.server.http.response import DONE, event_of
from app.extensions.scale_out import protocol as wire
from app.extensions.scale_out.message_reader import MessageReader


class GenerateResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    """Content of a response."""

    prompt_ids: Sequence[int]
    mode: Literal["tokens", "text", "derender"] = "tokens"
    logprobs: bool = False
    top_logprobs: int = ALL
    """Alternatives shown; tokens without texts show all."""
    reader: MessageReader | None = None
    """Reads the messages of the output mode derender."""
    weights: Weights


class GenerateWriter(ResponseWriter):
    """Writes the answer to one request, as a stream or whole."""

    def __init__(self, meta: ResponseMeta, options: GenerateResponseOptions) -> None:
        super().__init__(options.n)
        self._meta = meta
        self._options = options
        self._render_entry: Callable[[TokenLogprob], wire.TokenIdLogprob | Raw]
        self._render_entry = _token_id_entry
        if options.mode != "tokens":
            names = TokenNames(options.top_logprobs, options.token_id_names)
            self._render_entry = names.chat_entry
        self._has_sent_event = False
        self._weight_spans = WeightSpans(options.weights, options.n)

    def _render_tokens(self, output: Tokens) -> bytes:
        if self._weight_spans is not None:
            self._weight_spans.record(output, self.choices[output.index].tokens)
        # An end without a token has an event, too.
        count = max(len(output.texts), output.finish is not None)
        return b"".join([self._render_token(output, position) for position in range(count)])

    def _render_token(self, output: Tokens, position: int) -> bytes:
        options = self._options
        choice = self.choices[output.index]
        is_last = position + 1 >= len(output.texts)
        span = slice(position, None if is_last else position + 1)
        ids = output.ids[span]
        choice.tokens += len(ids)
        shown = wire.GenerateChoice(output.index, None, None, ids)
        if output.finish is not None and is_last:
            shown.finish_reason = output.finish.reason
            shown.stop_reason = output.finish.stop_reason
            shown.weight_versions = self._spans_of(output.index)
        if options.mode == "text":
            shown.text = "".join(output.texts[span])
        if options.logprobs:
            entries = (output.logprobs or ())[span]
            shown.logprobs = common.LogprobContent([*map(self._render_entry, entries)])
        usage = None
        if options.continuous_usage:
            usage = self._count_usage(len(options.prompt_ids), (choice,), None)
        chunk = self._chunk(usage, (shown,))
        if options.token_ids and not self._has_sent_event:
            chunk.prompt_token_ids = options.prompt_ids
        self._has_sent_event = True
        return event_of(chunk)

    def _chunk(
        self, usage: common.Usage | None, choices: Sequence[wire.GenerateChoice]
    ) -> wire.GenerateChunk:
        return wire.GenerateChunk(
            request_id=self._meta.id,
            usage=usage,
            prompt_token_ids=UNSET,
            output_mode=self._options.mode,
            choices=choices,
        )

    def closing(self) -> bytes:
        """Returns the end of the stream: an event with the usage, if requested, and `[DONE]`."""
        if not self._options.include_usage or self.has_failed:
            return DONE
        return event_of(self._chunk(self._total_usage(UNSET), ())) + DONE

    def _total_usage(self, missing: None | UnsetType) -> common.Usage:
        usage = self._count_usage(len(self._options.prompt_ids), self.choices, missing)
        if self._options.prompt_details:
            usage.prompt_tokens_details = common.PromptTokensDetails(
                self.reported_cached_tokens, missing, missing
            )
        return usage

    def whole(self) -> wire.GenerateResponse:
        """Returns the whole answer, once all outputs are collected."""
        return wire.GenerateResponse(
            request_id=self._meta.id,
            model=self._meta.model,
            created=self._meta.created,
            usage=self._total_usage(None),
            prompt_logprobs=prompt_entries(self.started.prompt_logprobs),
            prompt_token_ids=self._options.prompt_ids if self._options.token_ids else None,
            kv_transfer_params=self.transfer,
            ec_transfer_params=self.encoded_media,
            output_mode=self._options.mode,
            choices=self.render_choices(self._render_choice),
        )

    def _render_choice(self, index: int, choice: ChoiceState) -> wire.GenerateChoice:
        finish = choice.finish
        shown = wire.GenerateChoice(index, finish.reason, finish.stop_reason, choice.ids)
        shown.weight_versions = self._spans_of(index)
        options = self._options
        text = choice.texts_by_kind()["text"]
        if options.mode == "text":
            shown.text = text
        if options.logprobs:
            shown.logprobs = common.LogprobContent(rendered(choice.logprobs, self._render_entry))
        if options.reader is not None:
            message = options.reader.read(text)
            shown.message = message
            shown.finish_reason = options.reader.finish_reason(finish.reason, message)
            if options.reader.hides_tokens:
                shown.token_ids = None
                shown.logprobs = None
        return shown


def _token_id_entry(entry: TokenLogprob) -> wire.TokenIdLogprob:
    """Returns an entry that names tokens by their ids."""
    candidates = [
        wire.TokenCandidate(token_id, logprob, rank)
        for rank, (token_id, _, logprob) in zip(entry.ranks, entry.top, strict=False)
    ]
    return wire.TokenIdLogprob(entry.token_id, entry.logprob, entry.rank, candidates)
