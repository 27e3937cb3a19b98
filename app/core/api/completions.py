"""POST /v1/completions, and its answers: one JSON body or server-sent events."""

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from msgspec import Struct, UnsetType

from app.core.api.answer_limits import check_repeated
from app.core.api.chat.media import BuiltPrompt
from app.core.api.choice_state import ChoiceState
from app.core.api.identity import ResponseMeta, ResponseOptions
from app.core.api.logprobs import CompletionLogprobs, SomeEntries, prompt_entries, token_name
from app.core.api.pipeline import RequestPipeline
from app.core.api.writer import ChunkWriter, PlainChoice
from app.core.engine.outputs import Started, Tokens
from app.core.protocol import common
from app.core.protocol import completions as wire
from app.core.protocol.common import HOLE, PromptTokensDetails, Usage
from app.core.protocol.validation import ValidatedRequest, fit_prompt
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request
from app.core.server.http.response import Response
from app.core.server.http.route import STREAM_MEDIA, PlainHandler, Route, RouteDocs, post

if TYPE_CHECKING:
    from app.core.versions.shape import Shape


@cache
def plain_text(shape: "Shape") -> PlainChoice:
    """Returns the choice of a plain token's chunk."""
    return PlainChoice(wire.CompletionChunkChoice(HOLE, HOLE), shape)


class EchoedPrompt(Struct, frozen=True):
    """A prompt, with its text and the names of its tokens where the answer repeats them."""

    ids: Sequence[int]
    text: str = ""
    token_names: Sequence[str] = ()


class CompletionResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    """Content of a response. Choice i belongs to prompt i // n."""

    prompts: Sequence[EchoedPrompt]
    echo: bool = False
    prompt_only: bool = False
    """`echo` with `max_tokens` 0: the prompt is the whole text."""
    logprobs: bool = False


class CompletionWriter(ChunkWriter[CompletionResponseOptions]):
    """Writes the answer to a text completion, as a stream or whole."""

    kind = "text_completion"

    def __init__(self, meta: ResponseMeta, options: CompletionResponseOptions) -> None:
        is_special = (
            options.logprobs or options.token_ids or options.continuous_usage or options.echo
        )
        super().__init__(meta, options, len(options.prompts) * options.n, not is_special)
        self.plain_text = plain_text(options.shape)
        self._prompt_entries: list[SomeEntries | None] = [None] * len(options.prompts)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        """Log probabilities of each choice that a stream has started to show."""

    def record_start(self, output: Started, keep_first: bool = True) -> None:
        """Records the start of a choice, with the log probabilities of its prompt."""
        self._prompt_entries[output.index // self._options.n] = output.prompt_logprobs
        super().record_start(output, keep_first)

    def _build_choice(
        self, choice: ChoiceState, output: Tokens, span: slice, is_end: bool
    ) -> wire.CompletionChunkChoice:
        options = self._options
        index = output.index
        prompt = options.prompts[index // options.n]
        is_first = index not in self._logprobs
        if is_first:
            self._logprobs[index] = CompletionLogprobs(options.token_id_names)
        echoes = is_first and options.echo
        text = self._text_of(prompt, "".join(output.texts[span]), echoes)
        chunk_choice = wire.CompletionChunkChoice(index, text)
        if options.logprobs:
            spans = () if output.logprobs is None else (output.logprobs[span],)
            chunk_choice.logprobs = self._logprob_lists(self._logprobs[index], index, spans, echoes)
        if is_first and (options.token_ids or options.echo):
            chunk_choice.prompt_token_ids = prompt.ids
        if options.token_ids:
            chunk_choice.token_ids = output.ids[span]
        return chunk_choice

    def _choice_usage(self, index: int) -> Usage:
        prompt = self._options.prompts[index // self._options.n]
        return self._count_usage(len(prompt.ids), (self.choices[index],))

    def _text_of(self, prompt: EchoedPrompt, text: str, echoes: bool) -> str:
        """Returns a choice's text. With token ids, vLLM leaves out the prompt's text."""
        if not echoes:
            return text
        if self._options.prompt_only:
            text = ""
        if self._options.token_ids:
            return text
        return prompt.text + text

    def _logprob_lists(
        self, logprobs: CompletionLogprobs, index: int, spans: Sequence[SomeEntries], echoes: bool
    ) -> common.CompletionLogprobs:
        if not echoes:
            return logprobs.lists(spans, ())
        prompt_number = index // self._options.n
        all_spans = [self._prompt_entries[prompt_number] or ()]
        if not self._options.prompt_only:
            all_spans += spans
        return logprobs.lists(all_spans, self._options.prompts[prompt_number].token_names)

    def _total_usage(self, missing: None | UnsetType) -> Usage:
        options = self._options
        prompt_tokens = sum(len(prompt.ids) for prompt in options.prompts)
        usage = self._count_usage(prompt_tokens, self.choices, missing)
        if options.prompt_details and prompt_tokens:
            usage.prompt_tokens_details = PromptTokensDetails(
                self.reported_cached_tokens, missing, missing
            )
        return usage

    def whole(self) -> wire.Completion:
        """Returns the whole answer, once all outputs are collected."""
        return self._build_answer(wire.Completion, self._render_choice)

    def _render_choice(self, index: int, choice: ChoiceState) -> wire.CompletionChoice:
        options = self._options
        prompt = options.prompts[index // options.n]
        text = self._text_of(prompt, choice.texts_by_kind()["text"], options.echo)
        logprobs = None
        if options.logprobs:
            logprobs = self._logprob_lists(
                CompletionLogprobs(options.token_id_names), index, choice.logprobs, options.echo
            )
        completion_choice = wire.CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=choice.finish.reason,
            stop_reason=choice.finish.stop_reason,
            token_ids=choice.ids if options.token_ids else None,
            prompt_logprobs=prompt_entries(self._prompt_entries[index // options.n]),
            prompt_token_ids=prompt.ids if options.token_ids else None,
        )
        completion_choice.weight_versions = self._spans_of(index)
        return completion_choice


def routes(pipeline: RequestPipeline, plain: PlainHandler | None = None) -> list[Route]:
    """Returns the route of text completions; `plain` answers plain requests."""

    def completions(context: RequestContext) -> Response:
        """The continuations of one or several prompts, whole or as a stream."""
        request = pipeline.decode(context, wire.CompletionRequest)
        if request.stream and request.use_beam_search:
            raise bad_request("Streaming is not currently supported with beam search")
        accepted = pipeline.admit(request, context)
        if request.suffix is not None:
            message = "suffix is only supported for models with FIM completion rendering"
            if request.echo:
                message = "Echo is unsupported with suffix."
            # vLLM's server answers this error itself, without the end of other errors.
            raise ApiError(400, "BadRequestError", message, "suffix")
        if request.prompt_embeds:
            raise bad_request(
                "You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds"
            )
        prompts = [completion_prompt(pipeline, request, prompt) for prompt in request.prompts()]
        if request.stream and (request.echo or request.return_token_ids):
            check_repeated_prompts(accepted, prompts)
        shared = pipeline.options(accepted)
        if len(prompts) > 1:  # a hostile request must not make too many states
            pipeline.responder.engine.check_admission(len(prompts) * accepted.n)
        if request.echo:
            echoed = [
                echoed_prompt(
                    pipeline,
                    prompt.ids,
                    shows_names=request.logprobs is not None,
                    as_ids=shared["token_id_names"],
                    shows_special=not isinstance(sent, str),
                )
                for prompt, sent in zip(prompts, request.prompts(), strict=True)
            ]
        else:
            echoed = [EchoedPrompt(prompt.ids) for prompt in prompts]
        meta = pipeline.identity.response_meta("cmpl", context, request.request_id, accepted.model)
        options = CompletionResponseOptions(
            **shared,
            prompts=echoed,
            echo=bool(request.echo),
            prompt_only=request.max_tokens == 0,
            logprobs=request.logprobs is not None,
        )
        return pipeline.submit(accepted, meta, prompts, CompletionWriter(meta, options), context)

    docs = RouteDocs(
        body=(wire.CompletionRequest,),
        example={"prompt": "hello", "max_tokens": 8},
        answer=wire.Completion,
        media=STREAM_MEDIA,
    )
    return [post("/v1/completions", completions, plain=plain, docs=docs)]


def check_repeated_prompts(
    accepted: ValidatedRequest[wire.CompletionRequest], prompts: Sequence[BuiltPrompt]
) -> None:
    """Raises ApiError 400 for a stream that repeats too much of its prompts."""
    request = accepted.request
    tokens = accepted.n * sum([len(prompt.ids) for prompt in prompts])
    entries = 0
    if request.echo and request.logprobs is not None:
        entries = tokens * accepted.entries_per_prompt_token
    check_repeated("echo" if request.echo else "return_token_ids", tokens, entries)


def completion_prompt(
    pipeline: RequestPipeline, request: wire.CompletionRequest, prompt: str | wire.TokenIds
) -> BuiltPrompt:
    """Returns a prompt as tokens; mode `echo` repeats a prompt of ids as its decimal ids."""
    fit = partial(
        fit_prompt,
        request,
        max_model_len=pipeline.limits.max_model_len,
        rules=pipeline.limits.rules,
    )
    if not isinstance(prompt, str):
        return BuiltPrompt(fit(prompt), ",".join(map(str, prompt)))
    pipeline.check_text(prompt)
    kept = pipeline.limits.kept_tokens(
        request.truncate_prompt_tokens, from_end=request.truncation_side != "right"
    )
    ids = pipeline.tokenizer.encode(prompt, request.add_special_tokens, kept)
    turns: tuple[tuple[str, str], ...] = ()
    if pipeline.keeps_turns:
        turns = (("user", prompt),)
    return BuiltPrompt(fit(ids, is_text=True), prompt, turns)


def echoed_prompt(
    pipeline: RequestPipeline,
    ids: Sequence[int],
    *,
    shows_names: bool,
    as_ids: bool,
    shows_special: bool,
) -> EchoedPrompt:
    """Returns a prompt with its text, and with the names of its tokens if `shows_names`.

    The text of a prompt that is sent as ids has its special tokens (`shows_special`).
    """
    pipeline.spend(len(ids))
    names: list[str] = []
    if shows_names:
        texts = pipeline.tokenizer.token_texts(ids)
        for token_id, text in zip(ids, texts, strict=False):
            names.append(token_name(token_id, text, as_ids))
    return EchoedPrompt(ids, pipeline.tokenizer.decode(ids, not shows_special), names)
