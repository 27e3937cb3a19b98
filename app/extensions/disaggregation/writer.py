"""Answers of `/inference/v1/generate`: token ids, on request with their text."""

from collections.abc import Callable, Sequence

from msgspec import UNSET, Raw, UnsetType

from app.core.api.choice_state import ChoiceState
from app.core.api.identity import ResponseMeta, ResponseOptions
from app.core.api.logprobs import ALL, TokenNames, prompt_entries, rendered, token_id_entry
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, TokenLogprob, Tokens
from app.core.engine.weight_updates import WeightUpdates
from app.core.protocol import common
from app.core.server.http.response import DONE, event_of
from app.extensions.disaggregation import protocol as wire


class GenerateResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    """Content of a response."""

    prompt_ids: Sequence[int]
    text: bool = False
    logprobs: bool = False
    weights: WeightUpdates


class GenerateWriter(ResponseWriter):
    """Writes the answer to one request, as a stream or whole."""

    def __init__(self, meta: ResponseMeta, options: GenerateResponseOptions) -> None:
        super().__init__(options.n)
        self._meta = meta
        self._options = options
        self._mode = "text" if options.text else "tokens"
        self._render_entry: Callable[[TokenLogprob], common.TokenIdLogprob | Raw]
        self._render_entry = token_id_entry
        if options.text:
            self._render_entry = TokenNames(ALL, options.token_id_names).chat_entry
        self._has_sent_event = False
        self._versions: list[list[wire.WeightVersion]] = [[] for _ in self.choices]
        """Versions of the weights that made the tokens of each choice."""

    def _render_tokens(self, output: Tokens) -> bytes:
        self._record_weights(output)
        # An end without a token has an event, too.
        count = max(len(output.texts), output.finish is not None)
        return b"".join([self._render_token(output, position) for position in range(count)])

    def _render_token(self, output: Tokens, position: int) -> bytes:
        options = self._options
        choice = self.choices[output.index]
        span = slice(position, position + 1)
        ids = output.ids[span]
        choice.tokens += len(ids)
        shown = wire.GenerateChoice(output.index, None, None, ids)
        if output.finish is not None and position + 1 >= len(output.texts):
            shown.finish_reason = output.finish.reason
            shown.stop_reason = output.finish.stop_reason
            shown.weight_versions = self._versions[output.index]
        if options.text:
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
            output_mode=self._mode,
            choices=choices,
        )

    def closing(self) -> bytes:
        """Returns the end of the stream: an event with the usage, if requested, and `[DONE]`."""
        if not self._options.include_usage or self.has_failed:
            return DONE
        return event_of(self._chunk(self._total_usage(UNSET), ())) + DONE

    def collect(self, output: EngineOutput) -> None:
        """Collects an output for the whole answer."""
        if type(output) is Tokens:
            self._record_weights(output)
        super().collect(output)

    def _record_weights(self, output: Tokens) -> None:
        """Records the version of the weights that made these tokens."""
        spans = self._versions[output.index]
        start = self.choices[output.index].tokens
        version = self._options.weights.version
        if not spans or spans[-1].version != version:
            spans.append(wire.WeightVersion(version, start, start))
        spans[-1].end = start + len(output.ids)

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
            prompt_logprobs=prompt_entries(self.prompt_logprobs),
            prompt_token_ids=self._options.prompt_ids if self._options.token_ids else None,
            kv_transfer_params=self.transfer,
            ec_transfer_params=self.encoded_media,
            output_mode=self._mode,
            choices=self.render_choices(self._render_choice),
        )

    def _render_choice(self, index: int, choice: ChoiceState) -> wire.GenerateChoice:
        finish = choice.finish
        shown = wire.GenerateChoice(index, finish.reason, finish.stop_reason, choice.ids)
        shown.weight_versions = self._versions[index]
        if self._options.text:
            shown.text = choice.texts_by_kind()["text"]
        if self._options.logprobs:
            shown.logprobs = common.LogprobContent(rendered(choice.logprobs, self._render_entry))
        return shown
