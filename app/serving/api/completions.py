"""POST /v1/completions: one JSON body or server-sent events (vllm-api.md 3.2 to 3.4)."""

from collections.abc import Sequence

from msgspec import Struct, UnsetType

from app.engine.core.outputs import Started, Tokens
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.choice_state import ChoiceState
from app.serving.api.identity import ResponseMeta, ResponseOptions
from app.serving.api.logprobs import CompletionLogprobs, SomeEntries, prompt_entries, token_name
from app.serving.api.pipeline import RequestPipeline, check_repeated
from app.serving.api.writer import ChunkWriter, PlainChoice
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response
from app.serving.http.route import STREAM_MEDIA, PlainHandler, Route, RouteDocs, post
from app.serving.protocol import common
from app.serving.protocol import completions as wire
from app.serving.protocol.common import HOLE, PromptTokensDetails, Usage
from app.serving.protocol.validation import fit_prompt


class EchoedPrompt(Struct, frozen=True):
    ids: Sequence[int]
    text: str = ""
    token_names: Sequence[str] = ()


class CompletionResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    """Options of a completion's answer. Choice i belongs to prompt i // n."""

    prompts: Sequence[EchoedPrompt]
    echo: bool = False
    prompt_only: bool = False
    """`echo` with `max_tokens` 0: the prompt is the whole text."""
    logprobs: bool = False


class CompletionWriter(ChunkWriter[CompletionResponseOptions]):
    kind = "text_completion"
    plain_text = PlainChoice(wire.CompletionChunkChoice(HOLE, HOLE))

    def __init__(self, meta: ResponseMeta, options: CompletionResponseOptions) -> None:
        special = options.logprobs or options.token_ids or options.continuous_usage or options.echo
        super().__init__(meta, options, len(options.prompts) * options.n, not special)
        self._prompt_entries: list[SomeEntries | None] = [None] * len(options.prompts)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        """Log probabilities of each choice that a stream has begun to show."""

    def record_start(self, output: Started, keep_first: bool = True) -> None:
        self._prompt_entries[output.index // self._options.n] = output.prompt_logprobs
        super().record_start(output, keep_first)

    def _build_choice(
        self, choice: ChoiceState, output: Tokens, of: slice, ends: bool
    ) -> wire.CompletionChunkChoice:
        options, index = self._options, output.index
        prompt, first = options.prompts[index // options.n], index not in self._logprobs
        if first:
            self._logprobs[index] = CompletionLogprobs(options.token_id_names)
        echoes = first and options.echo
        shown = wire.CompletionChunkChoice(
            index, self._text_of(prompt, "".join(output.texts[of]), echoes)
        )
        if options.logprobs:
            spans = () if output.logprobs is None else (output.logprobs[of],)
            shown.logprobs = self._lists(self._logprobs[index], index, spans, echoes)
        if first and (options.token_ids or options.echo):
            shown.prompt_token_ids = prompt.ids
        if options.token_ids:
            shown.token_ids = output.ids[of]
        return shown

    def _choice_usage(self, index: int) -> Usage:
        prompt = self._options.prompts[index // self._options.n]
        return self._count_usage(len(prompt.ids), (self.choices[index],))

    def _text_of(self, prompt: EchoedPrompt, text: str, echoes: bool) -> str:
        """Returns a choice's text. With token ids, vLLM leaves out the prompt's text."""
        if not echoes:
            return text
        echoed = "" if self._options.token_ids else prompt.text
        return echoed if self._options.prompt_only else echoed + text

    def _lists(
        self, logprobs: CompletionLogprobs, index: int, spans: Sequence[SomeEntries], echoes: bool
    ) -> common.CompletionLogprobs:
        if not echoes:
            return logprobs.lists(spans, ())
        number, own = index // self._options.n, () if self._options.prompt_only else spans
        names = self._options.prompts[number].token_names
        return logprobs.lists([self._prompt_entries[number] or (), *own], names)

    def _total_usage(self, missing: None | UnsetType) -> Usage:
        options = self._options
        usage = self._count_usage(
            sum([len(prompt.ids) for prompt in options.prompts]), self.choices, missing
        )
        if options.prompt_details and options.prompts:
            usage.prompt_tokens_details = PromptTokensDetails(
                self.reported_cached_tokens, missing, missing
            )
        return usage

    def whole(self) -> wire.Completion:
        return self._build_answer(wire.Completion, self._choice)

    def _choice(self, index: int, choice: ChoiceState) -> wire.CompletionChoice:
        options = self._options
        prompt = options.prompts[index // options.n]
        text = self._text_of(prompt, choice.texts_by_kind()["text"], options.echo)
        logprobs = None
        if options.logprobs:
            own = CompletionLogprobs(options.token_id_names)
            logprobs = self._lists(own, index, choice.logprobs, options.echo)
        return wire.CompletionChoice(
            index,
            text,
            logprobs,
            choice.finish.reason,
            choice.finish.stop_reason,
            choice.ids if options.token_ids else None,
            prompt_entries(self._prompt_entries[index // options.n]),
            prompt.ids if options.token_ids else None,
        )


def routes(pipeline: RequestPipeline, plain: PlainHandler | None = None) -> list[Route]:
    def completions(context: RequestContext) -> Response:
        """The continuations of one or several prompts, whole or as a stream."""
        request = pipeline.decode(context, wire.CompletionRequest)
        if request.stream and request.use_beam_search:
            raise bad_request("Beam search cannot be streamed.")
        asked = pipeline.admit(request, context)
        if request.suffix is not None:
            raise bad_request("This model cannot fill in before a suffix.", "suffix")
        if request.prompt_embeds:
            raise bad_request("Prompts as embeddings are not enabled.", "prompt_embeds")
        prompts = [completion_prompt(pipeline, request, prompt) for prompt in request.prompts()]
        if request.stream and (request.echo or request.return_token_ids):
            tokens = asked.n * sum([len(prompt.ids) for prompt in prompts])
            shows_entries = request.echo and request.logprobs is not None
            entries = tokens * asked.entries_per_prompt_token if shows_entries else 0
            check_repeated("echo" if request.echo else "return_token_ids", tokens, entries)
        shared = pipeline.options(asked)
        echoed = [EchoedPrompt(prompt.ids) for prompt in prompts]
        if request.echo:
            shows_names, as_ids = request.logprobs is not None, shared["token_id_names"]
            echoed = [
                echoed_prompt(pipeline, prompt.ids, shows_names, as_ids) for prompt in prompts
            ]
        meta = pipeline.identity.response_meta("cmpl", context, request.request_id, asked.model)
        options = CompletionResponseOptions(
            **shared,
            prompts=echoed,
            echo=bool(request.echo),
            prompt_only=request.max_tokens == 0,
            logprobs=request.logprobs is not None,
        )
        return pipeline.submit(asked, meta, prompts, CompletionWriter(meta, options), context)

    docs = RouteDocs(
        body=(wire.CompletionRequest,),
        example={"prompt": "hello", "max_tokens": 8},
        answer=wire.Completion,
        media=STREAM_MEDIA,
    )
    return [post("/v1/completions", completions, plain=plain, docs=docs)]


def completion_prompt(
    pipeline: RequestPipeline, request: wire.CompletionRequest, prompt: str | wire.TokenIds
) -> BuiltPrompt:
    """Returns a prompt as tokens; a prompt of ids echoes as its decimal ids (simulator.md 5.2)."""
    most = pipeline.limits.max_model_len
    if isinstance(prompt, str):
        pipeline.check_text(prompt)
        ids = fit_prompt(
            request, pipeline.tokenizer.encode(prompt, request.add_special_tokens), most
        )
        return BuiltPrompt(ids, prompt, (("user", prompt),) if pipeline.keeps_turns else ())
    return BuiltPrompt(fit_prompt(request, prompt, most), ",".join(map(str, prompt)))


def echoed_prompt(
    pipeline: RequestPipeline, ids: Sequence[int], shows_names: bool, as_ids: bool
) -> EchoedPrompt:
    pipeline.slices.spend(len(ids))
    texts = pipeline.tokenizer.token_texts(ids) if shows_names else ()
    names = [token_name(*token, as_ids) for token in zip(ids, texts, strict=False)]
    return EchoedPrompt(ids, pipeline.tokenizer.decode(ids), names)
