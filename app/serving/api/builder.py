"""Builds the engine's requests from a validated request of any API family and its headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from app.base.clock.pause import Slices
from app.engine.core.request import Constraint, EngineRequest
from app.engine.forms.schema import Schemas
from app.engine.lora import LoRARegistry
from app.serving.api.chat.media import Features, placeholders
from app.serving.api.chat.thinking import thinking
from app.serving.api.chat.tools import tool_calls_of
from app.serving.api.identity import ResponseMeta
from app.serving.api.sampling import RealModel, SamplingDefaults, check_real, text_form
from app.serving.faults.fault import Fault
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.validation import GenerationRequest, ValidatedRequest
from config.sections.api import json_object
from config.settings import Settings

AT_ONCE = 1_000
"""Engine requests made between two pauses; each takes about 2 us."""


class BuiltPrompt(Struct, frozen=True):
    """One prompt, and its text for mode `echo`."""

    ids: Sequence[int]
    echo_text: str
    turns: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, if a dataset looks them up."""
    features: Features | None = None
    """Images and other media."""


@dataclass(slots=True)
class RequestBuilder:
    """Makes engine requests. `settings` may be replaced while the server runs; `rng` draws images."""

    settings: Settings
    adapters: LoRARegistry
    schemas: Schemas
    rng: Random
    real: RealModel | None = None
    """Set when a model computes."""

    def on_settings(self, settings: Settings) -> None:
        self.settings = settings

    def wants_image(self, asked: bool | None) -> bool:
        """Returns the request's own choice, else a draw."""
        return self.rng.random() * 100 < self.settings.model.image_emission_rate if asked is None else asked

    def build(
        self,
        asked: ValidatedRequest[GenerationRequest],
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        context: RequestContext,
        constraint: Constraint | None,
        image: bool = False,
    ) -> list[EngineRequest]:
        """Makes all n choices of each prompt; they differ in index and, if there is one, seed.

        ApiError 400 for invalid headers or tools. Pauses between many requests.
        """
        if not prompts:
            return []
        request, prompt, fault, real = asked.request, prompts[0], context.kept(Fault), self.real
        settings, headers = self.settings, context.headers
        transfer: Mapping[str, object] = {}
        if request.kv_transfer_params and settings.kvcache.transfers:
            transfer = request.kv_transfer_params
        if real is not None:
            check_real(request, prompt.features is not None)
        priority = priority_of(context, request.priority) if PRIORITY in headers else request.priority
        least_hit_rate = request.cache_hit_threshold
        if CACHE_THRESHOLD in headers and truth(context, CACHE_THRESHOLD):
            least_hit_rate = inf
        elif least_hit_rate is None:
            least_hit_rate = settings.kvcache.global_cache_hit_threshold
        tool_calls, thinks, thinking_budget = None, "no", None
        if isinstance(request, ChatCompletionRequest):
            if request.tools:
                tool_calls = tool_calls_of(request, settings.tools, self.schemas, real is not None)
            if parser := settings.reply.reasoning_parser:
                thinks = thinking(
                    request, parser, json_object(settings.api.default_chat_template_kwargs or "{}")
                )
            thinking_budget = request.thinking_token_budget
        form, sampling = None, None
        if real is not None:
            sampling = real.defaults.of(request)
            form = text_form(asked.structured_outputs, tool_calls)
            if form is not None and thinks != "no" and real.thoughts is not None:
                form = replace(form, thoughts=real.thoughts.after(prompt.ids))
        elif request.logit_bias or request.allowed_token_ids:
            sampling = SamplingDefaults().of(request)
        first = EngineRequest(
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
            thinking_budget=thinking_budget,
            adapter=asked.model if asked.model in self.adapters else None,
            priority=priority,
            cache_salt=request.cache_salt,
            media=placeholders(prompt.features) if prompt.features else (),
            cache_hit_threshold=least_hit_rate,
            image=image,
            remote_prefill=bool(transfer.get("do_remote_prefill")),
            delays=() if fault is None else fault.delays,
            remote_decode=bool(transfer.get("do_remote_decode")),
            n=asked.n,
            beams=request.use_beam_search,
            num_choices=len(prompts) * asked.n,
            observers=context.observers,
        )
        if len(prompts) == asked.n == 1:
            return [first]
        requests: list[EngineRequest] = []
        slices = Slices(AT_ONCE)
        for number, (other, max_tokens) in enumerate(zip(prompts, asked.max_tokens, strict=True)):
            own = first
            if number:
                own = replace(
                    first,
                    request_id=meta.engine_id(number),
                    index=number * first.n,
                    prompt_ids=other.ids,
                    echo_text=other.echo_text,
                    turns=other.turns,
                    max_tokens=max_tokens,
                    media=placeholders(other.features),
                )
            for k in range(first.n):
                seed = None if own.seed is None else own.seed + k
                requests.append(replace(own, index=own.index + k, seed=seed) if k else own)
                slices.spend()
        return requests


RANK = "x-data-parallel-rank"
PRIORITY = "x-vllm-priority"
SEND_IMAGE = "x-send-image"
CACHE_THRESHOLD = "x-cache-threshold-finish-reason"

TRUTHS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}


def check_rank(context: RequestContext, rank: int) -> None:
    """Raises ApiError 400 for a request that is pinned to a data parallel rank other than `rank`.

    vLLM takes a whole number as the rank's index, ignores other values, and refuses an index without an
    engine with a BadRequestError. Our ranks are processes with one port each, so each has only its own index.
    vLLM checks when the engine takes the request, so the error of a stream comes in the stream.
    """
    text = context.headers.get(RANK)
    if text is None:
        return
    try:
        pinned = int(text)
    except ValueError:
        return
    if pinned != rank:
        raise bad_request(f"X-data-parallel-rank is {pinned}, but this port serves rank {rank} only.")


def priority_of(context: RequestContext, own: int) -> int:
    """Returns the priority of the header, else `own`. ApiError 400 when the header is no integer."""
    given = context.headers.get(PRIORITY)
    if given is None:
        return own
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
