"""Shared path of the generating API families:

from a decoded body to the engine's requests and the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.base.clock.pause import Slices
from app.engine.core.constraints import Constraints
from app.engine.core.request import Constraint, EngineRequest, ToolCalls
from app.engine.core.wire import Sampling, TextForm
from app.serving.api.chat.media import BuiltPrompt, encoded, placeholders
from app.serving.api.chat.parts import constraint_of, tag_of, thinking, tool_calls_of
from app.serving.api.fault import Fault, FaultInjection
from app.serving.api.identity import Identity, ResponseMeta, address_of
from app.serving.api.models import ServedModels
from app.serving.api.responder import Responder
from app.serving.api.sampling import RealModel, SamplingDefaults, check_real, text_form
from app.serving.api.writer import ResponseWriter
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.common import ECTransferParams, UsageOverrides
from app.serving.protocol.decoding import Request, decode
from app.serving.protocol.validation import (
    GenerationRequest,
    ModelLimits,
    ValidatedRequest,
    too_long,
)
from app.text.base import Tokenizer
from config.sections.api import ApiSettings, json_object
from config.settings import Settings

if TYPE_CHECKING:
    from app.serving.api.reply_rules import ReplyRules

SLICE = 12_000
"""Values processed between two pauses: about 4 ms."""
CHARS = 2
"""Characters of a text to tokenize that count as one processed value."""
AT_ONCE = 1_000
"""Engine requests made between two pauses; each takes about 2 us."""
MAX_ANSWER_BYTES = 64 << 20
"""Most memory, in bytes, of one whole answer in the process."""
TOKEN_BYTES = 48
"""Memory of a token, text and id, until its answer is written; 36 bytes were measured."""
ENTRY_BYTES = 80
"""Memory of a log probability in an answer, in bytes; about 75 are JSON."""
MOST_REPEATED = 1 << 20
"""Most token ids and characters of prompts that a stream repeats at its start:

about 20 ms of work.
"""
MOST_REPEATED_LOGPROBS = 20_000
"""Most log probabilities of prompts that a stream repeats at its start: about 10 ms of work."""

RANK = "x-data-parallel-rank"
PRIORITY = "x-vllm-priority"
SEND_IMAGE = "x-send-image"
CACHE_THRESHOLD = "x-cache-threshold-finish-reason"
TRUTHS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}

T = TypeVar("T", bound=Request)
R = TypeVar("R", bound=GenerationRequest)
Asked = ValidatedRequest[GenerationRequest]


def always_fast(settings: Settings) -> bool:
    """Returns True: no extension needs to see plain requests."""
    return True


class ChatRules(Struct, frozen=True):
    trusts_templates: bool = False
    template_kwargs: Mapping[str, object] = {}
    hides_unused_tools: bool = False

    @classmethod
    def of(cls, api: ApiSettings) -> "ChatRules":
        kwargs = json_object(api.default_chat_template_kwargs or "{}")
        return cls(api.trust_request_chat_template, kwargs, api.exclude_tools_when_tool_choice_none)


@dataclass(slots=True)
class RequestPipeline:
    settings: Settings
    body: BodyLimits
    models: ServedModels
    tokenizer: Tokenizer
    identity: Identity
    responder: Responder
    faults: FaultInjection | None
    limits: ModelLimits
    schemas: Constraints
    images: Random
    """Draws which replies have an image."""
    chat_rules: ChatRules = ChatRules()
    rank: int = 0
    real: RealModel | None = None
    keeps_turns: bool = False
    """Prompts carry the texts of their messages, which datasets look up."""
    scripts: "ReplyRules | None" = None
    """Rules that decide replies; None while there are none."""
    keeps_fast_path: Callable[[Settings], bool] = always_fast
    """Returns whether plain requests may take the fast path while the settings are in force."""
    slices: Slices = field(default_factory=partial(Slices, SLICE))
    """Counts texts of all requests that become tokens, and pauses now and then."""

    def on_settings(self, settings: Settings) -> None:
        self.settings = settings

    def decode(self, context: RequestContext, kind: type[T]) -> T:
        """Returns the request in the body. ApiError 400, 408 or 413."""
        return decode(self.body.read(context), context.headers.get("content-type"), kind)

    def admit(self, request: R, context: RequestContext) -> ValidatedRequest[R]:
        """Validates the request as far as possible before its prompts are tokens."""
        if self.faults is not None:
            self.faults.inject(context, request.model)
        model = self.models.resolve(request.model)
        self.responder.engine.check_accepting(request.n or 1)
        return ValidatedRequest(request, model, self.limits)

    def damaged(self, response: Response, context: RequestContext) -> Response:
        """Returns `response` with the damage of the request's fault, if it has one."""
        if self.faults is None:
            return response
        return self.faults.damage(response, context.kept(Fault), context)

    def check_text(self, text: str) -> None:
        """Raises ApiError 400 for a text that cannot fit the context, before any work.

        May pause.
        """
        self.slices.spend(1 + len(text) // CHARS)
        most = self.limits.max_model_len
        if len(text) > most and len(text) > most * (self.tokenizer.longest_token or inf):
            raise too_long(
                most, f", which a prompt of {len(text)} characters cannot fit.", "input_text"
            )

    def encoded_media(self, hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
        return encoded(hashes) if self.settings.model.mm_encoder_only else None

    def options(self, asked: Asked, may_force_usage: bool = True) -> dict[str, Any]:
        api, request = self.settings.api, asked.request
        options, names = request.stream_options, request.return_tokens_as_token_ids
        usage = options is not None and bool(options.include_usage)
        everywhere = usage and options is not None and bool(options.continuous_usage_stats)
        forced = may_force_usage and api.enable_force_include_usage
        return {
            "n": asked.n,
            "include_usage": usage or forced,
            "continuous_usage": everywhere or forced,
            "token_ids": bool(request.return_token_ids),
            "token_id_names": api.return_tokens_as_token_ids if names is None else names,
            "prompt_details": api.enable_prompt_tokens_details and not request.use_beam_search,
            "metrics": api.enable_per_request_metrics,
        }

    def submit(
        self,
        asked: Asked,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        writer: ResponseWriter,
        context: RequestContext,
        image: bool = False,
        responder: Responder | None = None,
    ) -> Response:
        """Submits the request. A stream carries the refusals of the engine after its 200."""
        responder, request, stream = (
            responder or self.responder,
            asked.request,
            bool(asked.request.stream),
        )
        if prompts:
            self._note_transfers(request, meta, prompts, writer)
        prompt_ids = [prompt.ids for prompt in prompts]
        prompt_tokens = [*map(len, prompt_ids)]
        asked.check_sampling(prompt_tokens)
        form, constraint = asked.structured_outputs, None
        if form is not None and form.structural_tag is not None:
            constraint = Constraint(grammar=tag_of(form.structural_tag, request, self.schemas))
        try:
            if RANK in context.headers:
                check_rank(context, self.rank)
            asked.check_engine(prompt_ids)
            if form is not None and constraint is None:
                constraint = constraint_of(form, self.schemas)
        except ApiError as error:
            if stream:
                return responder.broken(error, writer)
            raise
        # Without a limit replies are short, unless their end is ignored.
        if not stream and (asked.requested is not None or request.ignore_eos):
            check_answer_size(asked, sum(prompt_tokens))
        if len(prompts) * asked.n > 1:  # a hostile request must not make too many engine requests
            responder.engine.check_admission(len(prompts) * asked.n)
        requests = (
            [self._first_request(asked, meta, prompts, context, constraint, image)]
            if prompts
            else []
        )
        if len(prompts) * asked.n > 1:
            requests = every_choice(requests[0], asked, meta, prompts)
        if self.scripts is not None:
            requests = self.scripts.direct(request, prompts, requests, writer, context)
        return responder.respond(requests, writer, stream, context)

    def _note_transfers(
        self,
        request: GenerationRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        writer: ResponseWriter,
    ) -> None:
        transfer, features = request.kv_transfer_params, prompts[-1].features
        if transfer:
            writer.transfer = address_of(request, self.identity, meta, len(prompts[0].ids))
            # The answer repeats how many of the prompt's tokens the prefill side had cached.
            cached = transfer.get("remote_prefill_cached_tokens")
            if transfer.get("do_remote_prefill") and isinstance(cached, int):
                writer.usage = UsageOverrides(cached_tokens=cached)
        if features:
            writer.encoded_media = self.encoded_media(features["mm_hashes"])

    def _first_request(
        self,
        asked: Asked,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        context: RequestContext,
        constraint: Constraint | None,
        image: bool,
    ) -> EngineRequest:
        """Makes the first choice of the first prompt. ApiError 400 for invalid headers or tools."""
        request, prompt, fault = asked.request, prompts[0], context.kept(Fault)
        kvcache = self.settings.kvcache
        given = request.kv_transfer_params
        transfer = given if given and kvcache.transfers else None
        if self.real is not None:
            check_real(request, prompt.features is not None)
        priority, threshold = priority_of(context, request.priority), request.cache_hit_threshold
        if truth(context, CACHE_THRESHOLD):
            threshold = inf
        elif threshold is None:
            threshold = kvcache.global_cache_hit_threshold
        chat, tool_calls, thinks = None, None, "no"
        if isinstance(request, ChatCompletionRequest):
            chat, parser = request, self.settings.reply.reasoning_parser
            tool_calls = tool_calls_of(
                chat, self.settings.tools, self.schemas, self.real is not None
            )
            thinks = thinking(chat, parser, self.chat_rules.template_kwargs)
        sampling, form = self._computed(asked, tool_calls, thinks != "no", prompt.ids)
        return EngineRequest(
            request_id=meta.engine_id(0),
            index=0,
            model=asked.model,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            turns=prompt.turns,
            max_tokens=asked.max_tokens[0],
            limited=asked.requested is not None,
            arrival_s=context.arrival_s,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=asked.stop,
            stop_token_ids=asked.stop_token_ids,
            include_stop=request.include_stop_str_in_output,
            seed=asked.seed,
            greedy=asked.greedy,
            logprobs=asked.logprobs,
            logprob_ids=tuple(request.logprob_token_ids or ()),
            prompt_logprobs=asked.prompt_logprobs,
            tool_calls=tool_calls,
            constraint=constraint,
            sampling=sampling,
            form=form,
            reasoning=thinks != "no",
            only_thoughts=thinks == "all",
            thinking_budget=None if chat is None else chat.thinking_token_budget,
            adapter=self.models.adapter_of(asked.model),
            priority=priority,
            cache_salt=request.cache_salt,
            media=() if prompt.features is None else placeholders(prompt.features),
            cache_hit_threshold=threshold,
            image=image,
            remote_prefill=bool(transfer and transfer.get("do_remote_prefill")),
            delays=() if fault is None else fault.delays,
            remote_decode=bool(transfer and transfer.get("do_remote_decode")),
            n=asked.n,
            beams=request.use_beam_search,
            num_choices=len(prompts) * asked.n,
            observers=context.observers,
        )

    def _computed(
        self, asked: Asked, calls: ToolCalls | None, thinks: bool, prompt_ids: Sequence[int]
    ) -> tuple[Sampling | None, TextForm | None]:
        request, real = asked.request, self.real
        if real is None:
            looks = request.logit_bias or request.allowed_token_ids
            return SamplingDefaults().of(request) if looks else None, None
        form = text_form(asked.structured_outputs, calls)
        if form is not None and thinks and real.thoughts is not None:
            form = replace(form, thoughts=real.thoughts.after(prompt_ids))
        return real.defaults.of(request), form


def every_choice(
    first: EngineRequest, asked: Asked, meta: ResponseMeta, prompts: Sequence[BuiltPrompt]
) -> list[EngineRequest]:
    """Makes all n choices of each prompt, which differ in index and seed. Pauses between many."""
    requests: list[EngineRequest] = []
    slices = Slices(AT_ONCE)
    for number, (prompt, max_tokens) in enumerate(zip(prompts, asked.max_tokens, strict=True)):
        own = replace(
            first,
            request_id=meta.engine_id(number),
            index=number * first.n,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            turns=prompt.turns,
            max_tokens=max_tokens,
            media=placeholders(prompt.features),
        )
        for k in range(first.n):
            seed = None if own.seed is None else own.seed + k
            requests.append(replace(own, index=own.index + k, seed=seed) if k else own)
            slices.spend()
    return requests


def check_answer_size(asked: Asked, prompt_tokens: int) -> None:
    """Raises ApiError 400 when a whole answer may have too many tokens or log probabilities."""
    tokens = asked.n * sum(asked.max_tokens)
    entries = (
        tokens * asked.entries_per_token + asked.n * prompt_tokens * asked.entries_per_prompt_token
    )
    size = tokens * TOKEN_BYTES + entries * ENTRY_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"n={asked.n * len(asked.max_tokens)} choices of up to {tokens} tokens and {entries} log "
            f"probabilities together would take {size >> 20} MiB, more than {MAX_ANSWER_BYTES >> 20}. "
            "Ask for less, or for a stream."
        )


def check_repeated(param: str, values: int, entries: int = 0) -> None:
    """Raises ApiError 400 for a stream that repeats too many values or log probabilities of its
    prompts.
    """
    if values > MOST_REPEATED or entries > MOST_REPEATED_LOGPROBS:
        limits = f"{MOST_REPEATED} token ids and characters, and {MOST_REPEATED_LOGPROBS} log probabilities"
        raise bad_request(f"Of its prompts a stream repeats at most {limits}.", param)


def check_rank(context: RequestContext, rank: int) -> None:
    """Raises ApiError 400 for another rank's request.

    As in vLLM, a header without a number is ignored.
    """
    try:
        pinned = int(context.headers[RANK])
    except ValueError:
        return
    if pinned != rank:
        raise bad_request(
            f"X-data-parallel-rank is {pinned}, but this port serves rank {rank} only."
        )


def priority_of(context: RequestContext, own: int) -> int:
    """Returns the priority of the header, else `own`.

    ApiError 400 when the header is no integer.
    """
    given = context.headers.get(PRIORITY, str(own))
    try:
        return int(given)
    except ValueError:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {given[:40]!r}") from None


def truth(context: RequestContext, header: str) -> bool | None:
    """Returns the value of a boolean header; None without it. ApiError 400 for another word."""
    text = context.headers.get(header)
    if text is None:
        return None
    if text.lower() not in TRUTHS:
        raise bad_request(f"{header.title()} must be true or false, got {text[:40]!r}")
    return TRUTHS[text.lower()]
