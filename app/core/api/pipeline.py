"""Shared path of the generating API families, from a body to engine requests and the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.core.api.chat.media import BuiltPrompt, encoded, placeholders
from app.core.api.chat.parts import Thinking, constraint_of, tag_of, thinking, tool_calls_of
from app.core.api.fault import Fault, FaultInjection
from app.core.api.identity import Identity, ResponseMeta, address_of
from app.core.api.models import ServedModels
from app.core.api.responder import Responder
from app.core.api.sampling import RealModel, SamplingDefaults, check_real, text_form
from app.core.api.writer import ResponseWriter
from app.core.base.clock.pause import Slices
from app.core.engine.constraints import Constraints
from app.core.engine.request import Constraint, EngineRequest, ToolCalls
from app.core.engine.wire import Sampling, TextForm
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.common import ECTransferParams, UsageOverrides
from app.core.protocol.decoding import Request, decode
from app.core.protocol.validation import GenerationRequest, ModelLimits, ValidatedRequest, too_long
from app.core.server.http.context import BodyLimits, RequestContext
from app.core.server.http.errors import ApiError, bad_request
from app.core.server.http.response import Response
from app.core.text.base import Tokenizer
from config.sections.api import ApiSettings, json_object
from config.settings import Settings

if TYPE_CHECKING:
    from app.core.api.reply_rules import ReplyRules

SLICE = 12_000
"""Values processed between two pauses: about 4 ms."""
CHARS_PER_VALUE = 2
"""Characters of a text to tokenize that count as one processed value."""
REQUESTS_PER_SLICE = 1_000
"""Engine requests made between two pauses; each takes about 2 us."""
MAX_ANSWER_BYTES = 64 << 20
"""Most memory, in bytes, of one whole answer in the process."""
TOKEN_BYTES = 48
"""Memory of a token, text and id, until its answer is written; 36 bytes were measured."""
ENTRY_BYTES = 80
"""Memory of a log probability in an answer, in bytes; about 75 are JSON."""
MAX_REPEATED = 1 << 20
"""Most token ids and characters of prompts that a stream repeats at its start: about 20 ms."""
MAX_REPEATED_LOGPROBS = 20_000
"""Most log probabilities of prompts that a stream repeats at its start: about 10 ms of work."""

RANK_HEADER = "x-data-parallel-rank"
PRIORITY_HEADER = "x-vllm-priority"
IMAGE_HEADER = "x-send-image"
CACHE_THRESHOLD_HEADER = "x-cache-threshold-finish-reason"
BOOLEANS = {
    "1": True,
    "t": True,
    "true": True,
    "0": False,
    "f": False,
    "false": False,
}
"""Values of boolean headers, in lower case."""

T = TypeVar("T", bound=Request)
R = TypeVar("R", bound=GenerationRequest)
AcceptedRequest = ValidatedRequest[GenerationRequest]


def always_fast(settings: Settings) -> bool:
    """Returns True: no extension needs to see plain requests."""
    return True


class ChatRules(Struct, frozen=True):
    """Permissions of requests to change the chat template, and its default variables."""

    trusts_templates: bool = False
    template_kwargs: Mapping[str, object] = {}
    hides_unused_tools: bool = False

    @classmethod
    def of(cls, api: ApiSettings) -> "ChatRules":
        """Returns the rules of the settings."""
        return cls(
            trusts_templates=api.trust_request_chat_template,
            template_kwargs=json_object(api.default_chat_template_kwargs or "{}"),
            hides_unused_tools=api.exclude_tools_when_tool_choice_none,
        )


@dataclass(slots=True)
class RequestPipeline:
    """Decodes, admits and submits requests, with the parts of the server that they need."""

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
        """Uses changed settings from now on."""
        self.settings = settings

    def damaged(self, response: Response, context: RequestContext) -> Response:
        """Returns `response` with the damage of the request's fault, if it has one."""
        if self.faults is None:
            return response
        return self.faults.damage(response, context.kept(Fault), context)

    def decode(self, context: RequestContext, request_type: type[T]) -> T:
        """Returns the request in the body.

        Raises:
            ApiError: 400, 408 or 413.
        """
        content_type = context.headers.get("content-type")
        return decode(self.body.read(context), content_type, request_type)

    def admit(self, request: R, context: RequestContext) -> ValidatedRequest[R]:
        """Validates the request as far as possible before its prompts are tokens."""
        if self.faults is not None:
            self.faults.inject(context, request.model)
        model = self.models.resolve(request.model)
        self.responder.engine.check_accepting(request.n or 1)
        return ValidatedRequest(request, model, self.limits)

    def check_text(self, text: str) -> None:
        """Checks the length of a text before any work. May pause.

        Raises:
            ApiError: 400 for a text that cannot fit the context.
        """
        self.slices.spend(1 + len(text) // CHARS_PER_VALUE)
        max_tokens = self.limits.max_model_len
        if len(text) <= max_tokens:
            return
        if len(text) > max_tokens * (self.tokenizer.longest_token or inf):
            reason = f", which a prompt of {len(text)} characters cannot fit."
            raise too_long(max_tokens, reason, "input_text")

    def encoded_media(self, hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
        """Returns where media are encoded, on a server that encodes alone."""
        if not self.settings.model.mm_encoder_only:
            return None
        return encoded(hashes)

    def options(self, accepted: AcceptedRequest, may_force_usage: bool = True) -> dict[str, Any]:
        """Returns the fields of `ResponseOptions` for an answer."""
        api = self.settings.api
        request = accepted.request
        stream_options = request.stream_options
        include_usage = stream_options is not None and bool(stream_options.include_usage)
        continuous_usage = (
            stream_options is not None
            and include_usage
            and bool(stream_options.continuous_usage_stats)
        )
        is_forced = may_force_usage and api.enable_force_include_usage
        token_id_names = request.return_tokens_as_token_ids
        if token_id_names is None:
            token_id_names = api.return_tokens_as_token_ids
        return {
            "n": accepted.n,
            "include_usage": include_usage or is_forced,
            "continuous_usage": continuous_usage or is_forced,
            "token_ids": bool(request.return_token_ids),
            "token_id_names": token_id_names,
            "prompt_details": api.enable_prompt_tokens_details and not request.use_beam_search,
            "metrics": api.enable_per_request_metrics,
        }

    def submit(
        self,
        accepted: AcceptedRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        writer: ResponseWriter,
        context: RequestContext,
        responder: Responder | None = None,
    ) -> Response:
        """Submits the request. A stream carries the rejections of the engine after its 200."""
        request = accepted.request
        stream = bool(request.stream)
        responder = responder or self.responder
        if prompts and (request.kv_transfer_params or prompts[-1].features):
            self._record_transfers(request, meta, prompts, writer)
        prompt_ids = [prompt.ids for prompt in prompts]
        prompt_tokens = [*map(len, prompt_ids)]
        accepted.check_sampling(prompt_tokens)
        constraint = None
        form = accepted.structured_outputs
        if form is not None and form.structural_tag is not None:
            constraint = Constraint(grammar=tag_of(form.structural_tag, request, self.schemas))
        try:
            if RANK_HEADER in context.headers:
                check_rank(context, self.rank)
            accepted.check_engine(prompt_ids)
            if form is not None and constraint is None:
                constraint = constraint_of(form, self.schemas)
        except ApiError as error:
            if stream:
                return responder.broken(error, writer)
            raise
        # Without a limit replies are short, unless their end is ignored.
        if not stream and (accepted.requested is not None or request.ignore_eos):
            check_answer_size(accepted, sum(prompt_tokens))
        num_choices = len(prompts) * accepted.n
        if num_choices > 1:  # a hostile request must not make too many engine requests
            responder.engine.check_admission(num_choices)
        requests = (
            self._build_requests(
                accepted, meta, prompts, context=context, constraint=constraint, image=writer.image
            )
            if prompts
            else []
        )
        if self.scripts is not None:
            requests = self.scripts.direct(
                request, prompts, requests, writer=writer, context=context
            )
        return responder.respond(requests, writer, stream, context)

    def _record_transfers(
        self,
        request: GenerationRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        writer: ResponseWriter,
    ) -> None:
        """Passes the response's fields about cache transfers and media to the writer."""
        transfer = request.kv_transfer_params
        features = prompts[-1].features
        if transfer:
            writer.transfer = address_of(request, self.identity, meta, len(prompts[0].ids))
            # The answer repeats how many of the prompt's tokens the prefill side had cached.
            cached_tokens = transfer.get("remote_prefill_cached_tokens")
            if transfer.get("do_remote_prefill") and isinstance(cached_tokens, int):
                writer.usage = UsageOverrides(cached_tokens=cached_tokens)
        if features:
            writer.encoded_media = self.encoded_media(features["mm_hashes"])

    def _build_requests(
        self,
        accepted: AcceptedRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        *,
        context: RequestContext,
        constraint: Constraint | None,
        image: bool,
    ) -> list[EngineRequest]:
        """Returns the engine's requests for all choices of all prompts.

        Raises:
            ApiError: 400 for invalid headers or tools.
        """
        request = accepted.request
        prompt = prompts[0]
        fault = context.kept(Fault)
        kvcache = self.settings.kvcache
        transfer = request.kv_transfer_params
        if transfer and not kvcache.transfers:
            transfer = None
        if self.real is not None:
            check_real(request, prompt.features is not None)
        priority = priority_of(context, request.priority)
        hit_threshold = request.cache_hit_threshold
        if boolean_header(context, CACHE_THRESHOLD_HEADER):
            hit_threshold = inf
        elif hit_threshold is None:
            hit_threshold = kvcache.global_cache_hit_threshold
        tool_calls = None
        thinking_budget = None
        thinks: Thinking = "no"
        if isinstance(request, ChatCompletionRequest):
            thinking_budget = request.thinking_token_budget
            tool_calls = tool_calls_of(
                request, self.settings.tools, self.schemas, self.real is not None
            )
            parser = self.settings.reply.reasoning_parser
            thinks = thinking(request, parser, self.chat_rules.template_kwargs)
        sampling, form = self._real_options(accepted, tool_calls, thinks != "no", prompt.ids)
        first = EngineRequest(
            request_id=meta.engine_id(0),
            index=0,
            model=accepted.model,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            turns=prompt.turns,
            max_tokens=accepted.max_tokens[0],
            limited=accepted.requested is not None,
            arrival_s=context.arrival_s,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=accepted.stop,
            stop_token_ids=accepted.stop_token_ids,
            include_stop=request.include_stop_str_in_output,
            seed=accepted.seed,
            greedy=accepted.greedy,
            logprobs=accepted.logprobs,
            logprob_ids=tuple(request.logprob_token_ids or ()),
            prompt_logprobs=accepted.prompt_logprobs,
            tool_calls=tool_calls,
            constraint=constraint,
            sampling=sampling,
            form=form,
            reasoning=thinks != "no",
            only_thoughts=thinks == "all",
            thinking_budget=thinking_budget,
            adapter=self.models.adapter_of(accepted.model),
            priority=priority,
            cache_salt=request.cache_salt,
            media=() if prompt.features is None else placeholders(prompt.features),
            cache_hit_threshold=hit_threshold,
            image=image,
            remote_prefill=bool(transfer and transfer.get("do_remote_prefill")),
            delays=() if fault is None else fault.delays,
            remote_decode=bool(transfer and transfer.get("do_remote_decode")),
            n=accepted.n,
            beams=request.use_beam_search,
            num_choices=len(prompts) * accepted.n,
            observers=context.observers,
        )
        if first.num_choices == 1:
            return [first]
        return every_choice(first, accepted, meta, prompts)

    def _real_options(
        self,
        accepted: AcceptedRequest,
        calls: ToolCalls | None,
        thinks: bool,
        prompt_ids: Sequence[int],
    ) -> tuple[Sampling | None, TextForm | None]:
        """Returns the sampling and the form of the text for a model that computes.

        A simulation needs only a sampling, and only where the request restricts tokens.
        """
        request = accepted.request
        if self.real is None:
            if request.logit_bias or request.allowed_token_ids:
                return SamplingDefaults().for_request(request), None
            return None, None
        form = text_form(accepted.structured_outputs, calls)
        thoughts = self.real.thoughts
        if form is not None and thinks and thoughts is not None:
            form = replace(form, thoughts=thoughts.after(prompt_ids))
        return self.real.defaults.for_request(request), form


def every_choice(
    first: EngineRequest,
    accepted: AcceptedRequest,
    meta: ResponseMeta,
    prompts: Sequence[BuiltPrompt],
) -> list[EngineRequest]:
    """Makes all n choices of each prompt, which differ in index and seed. Pauses between many."""
    requests: list[EngineRequest] = []
    slices = Slices(REQUESTS_PER_SLICE)
    for number, (prompt, max_tokens) in enumerate(zip(prompts, accepted.max_tokens, strict=True)):
        request = replace(
            first,
            request_id=meta.engine_id(number),
            index=number * first.n,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            turns=prompt.turns,
            max_tokens=max_tokens,
            media=placeholders(prompt.features),
        )
        requests.append(request)
        slices.spend()
        for choice in range(1, first.n):
            seed = None if request.seed is None else request.seed + choice
            requests.append(replace(request, index=request.index + choice, seed=seed))
            slices.spend()
    return requests


def check_answer_size(accepted: AcceptedRequest, prompt_tokens: int) -> None:
    """Raises ApiError 400 when a whole answer may have too many tokens or log probabilities."""
    n = accepted.n
    tokens = n * sum(accepted.max_tokens)
    entries = tokens * accepted.entries_per_token
    entries += n * prompt_tokens * accepted.entries_per_prompt_token
    size = tokens * TOKEN_BYTES + entries * ENTRY_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"n={n * len(accepted.max_tokens)} choices of up to {tokens} tokens and {entries} "
            f"log probabilities together would take {size >> 20} MiB, "
            f"more than {MAX_ANSWER_BYTES >> 20}. Ask for less, or for a stream."
        )


def check_repeated(param: str, values: int, entries: int = 0) -> None:
    """Raises ApiError 400 for a stream that repeats too much of its prompts.

    `values` counts token ids and characters, `entries` log probabilities.
    """
    if values > MAX_REPEATED or entries > MAX_REPEATED_LOGPROBS:
        raise bad_request(
            f"Of its prompts a stream repeats at most {MAX_REPEATED} token ids and characters, "
            f"and {MAX_REPEATED_LOGPROBS} log probabilities.",
            param,
        )


def check_rank(context: RequestContext, rank: int) -> None:
    """Raises ApiError 400 for a request to another rank.

    As in vLLM, a header without a number is ignored.
    """
    try:
        requested_rank = int(context.headers[RANK_HEADER])
    except ValueError:
        return
    if requested_rank != rank:
        raise bad_request(
            f"X-data-parallel-rank is {requested_rank}, but this port serves rank {rank} only."
        )


def priority_of(context: RequestContext, default: int) -> int:
    """Returns the priority of the header, else `default`.

    Raises:
        ApiError: 400 when the header is not an integer.
    """
    text = context.headers.get(PRIORITY_HEADER, str(default))
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {text[:40]!r}") from None


def boolean_header(context: RequestContext, header: str) -> bool | None:
    """Returns the value of a boolean header, or None without the header.

    Raises:
        ApiError: 400 for another word.
    """
    text = context.headers.get(header)
    if text is None:
        return None
    if text.lower() not in BOOLEANS:
        raise bad_request(f"{header.title()} must be true or false, got {text[:40]!r}")
    return BOOLEANS[text.lower()]
