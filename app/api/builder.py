"""From a request of any API family to its generations, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.api.chat.media import Features, placeholders
from app.api.chat.tools import calls_of, constraint_of
from app.api.response_meta import ResponseMeta
from app.engine.observer import Observer
from app.engine.request import EngineRequest
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.lora.registry import LoRARegistry
from app.protocol.chat import ChatCompletionRequest
from app.protocol.validation import limits as rules
from app.protocol.validation import model as model_limits
from app.protocol.validation.limits import GenerateRequest
from app.schema import Schemas
from config.settings import Settings

NO_SEED = -1
NO_THOUGHTS = ("none",)
"""Reasoning efforts that keep a model from thinking."""
TRUTHS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}


class Prompt(Struct, frozen=True):
    """One prompt, and what mode `echo` makes of it."""

    ids: Sequence[int]
    echo_text: str
    turns: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, where somebody looks at them."""
    features: Features | None = None
    """Images and the like."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What a request means besides its body. It has `together` choices, and came at `arrival_s`."""

    head: ResponseMeta
    arrival_s: float
    together: int
    priority: int = 0
    image: bool = False
    delays: tuple[tuple[int, float], ...] = ()
    observers: Sequence[Observer] = ()
    missed: bool = False
    """Whether the cache is to be said to have too little of the prompt."""


def truth(context: RequestContext, header: str) -> bool | None:
    """What a header says; None without it. ApiError 400 for another word."""
    text = context.headers.get(header)
    if text is None:
        return None
    if text.lower() not in TRUTHS:
        raise bad_request(f"{header.title()} must be true or false, got {text[:40]!r}")
    return TRUTHS[text.lower()]


@dataclass(slots=True)
class RequestBuilder:
    """Makes generations. `settings` may be replaced while the server runs; `rng` decides about images."""

    settings: Settings
    adapters: LoRARegistry
    schemas: Schemas
    rng: Random

    def on_settings(self, settings: Settings) -> None:
        """Live settings have changed."""
        self.settings = settings

    def wants_image(self, asked: bool | None) -> bool:
        """What the request says of an image, else a draw."""
        return self.rng.random() * 100 < self.settings.model.image_emission_rate if asked is None else asked

    def choices(
        self, request: GenerateRequest, wanted: Wanted, prompt: Prompt, number: int, most_tokens: int
    ) -> list[EngineRequest]:
        """All n choices of prompt `number`: they differ in their place and, if there is one, their seed.

        ApiError 400 when tools or the wanted form make no sense.
        """
        first = self._first(request, wanted, prompt, number, most_tokens)
        others = (
            replace(first, index=first.index + k, seed=None if first.seed is None else first.seed + k)
            for k in range(1, first.n)
        )
        return [first, *others]

    def _first(
        self, request: GenerateRequest, wanted: Wanted, prompt: Prompt, number: int, most_tokens: int
    ) -> EngineRequest:
        n, stop = request.n or 1, request.stop or ()
        model = wanted.head.model
        return EngineRequest(
            request_id=wanted.head.id,
            index=number * n,
            model=model,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            turns=prompt.turns,
            max_tokens=most_tokens,
            limited=rules.requested_max_tokens(request)[0] is not None,
            arrival_s=wanted.arrival_s,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=frozenset(request.stop_token_ids or ()),
            include_stop=request.include_stop_str_in_output,
            seed=None if request.seed == NO_SEED else request.seed,
            greedy=request.temperature is not None and request.temperature < rules.GREEDY_BELOW,
            logprobs=model_limits.wanted_logprobs(request),
            prompt_logprobs=model_limits.wanted_prompt_logprobs(request),
            constraint=constraint_of(request, self.schemas),
            adapter=model if model in self.adapters else None,
            priority=wanted.priority,
            cache_salt=request.cache_salt,
            media=placeholders(prompt.features),
            least_hit_rate=inf if wanted.missed else self._least_hit_rate(request),
            image=wanted.image,
            delays=wanted.delays,
            n=n,
            together=wanted.together,
            observers=wanted.observers,
            **self._of_chat(request),
            **_transfer(request.kv_transfer_params),
        )

    def _of_chat(self, request: GenerateRequest) -> dict[str, Any]:
        """What only a chat can ask for."""
        if not isinstance(request, ChatCompletionRequest):
            return {}
        calls = calls_of(request, self.settings.tools, self.schemas)
        thoughts = {"reasoning": self.thinks(request), "thinking_budget": request.thinking_token_budget}
        return {"tool_calls": calls, **thoughts}

    def _least_hit_rate(self, request: GenerateRequest) -> float:
        """The request's own threshold if it has one, else the server's (simulator.md 13.7)."""
        own = request.cache_hit_threshold
        return self.settings.kvcache.global_cache_hit_threshold if own is None else own

    def thinks(self, request: ChatCompletionRequest) -> bool:
        """True when the model thinks before it answers: it is able to, and the request does not forbid it."""
        if not self.settings.reply.reasoning_parser or request.reasoning_effort in NO_THOUGHTS:
            return False
        kwargs = request.chat_template_kwargs or {}
        return bool(kwargs.get("enable_thinking", kwargs.get("thinking", True)))


def _transfer(params: dict[str, Any] | None) -> dict[str, Any]:
    """The two words of `kv_transfer_params` that change what a server does (simulator.md section 17)."""
    return {
        "remote_prefill": bool(params and params.get("do_remote_prefill")),
        "remote_decode": bool(params and params.get("do_remote_decode")),
    }
