"""Makes the engine's requests of a validated request: one for each choice of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from app.core.api.chat.media import BuiltPrompt, placeholders
from app.core.api.chat.thinking import Thinking, thinking
from app.core.api.headers import (
    CACHE_THRESHOLD_HEADER,
    PRIORITY_HEADER,
    boolean_header,
    priority_of,
)
from app.core.base.callers import claim_memory
from app.core.base.clock.pause import paced
from app.core.engine.request import EngineRequest
from app.core.engine.sampling import SamplingDefaults
from app.core.protocol.chat import ChatCompletionRequest

if TYPE_CHECKING:
    from app.core.api.chat.rules import ChatRules
    from app.core.api.identity import ResponseMeta
    from app.core.api.models import ServedModels
    from app.core.api.sampling import RealModel
    from app.core.api.writer import ResponseWriter
    from app.core.engine.constraints import Constraints
    from app.core.engine.request import Constraint, ToolCalls
    from app.core.protocol.validation import AcceptedRequest
    from app.core.server.http.context import RequestContext
    from config.validation import LiveSettings

CHOICE_BYTES = 1_000
"""Memory of one of several choices besides its tokens; 700 were measured."""
ID_COPIES = 3
"""Copies of an answer's id for each choice: its request, an event, and the bytes to send."""


class ReplyParts(NamedTuple):
    """Parts of a reply besides its text."""

    tool_calls: ToolCalls | None = None
    thinks: Thinking = "no"


class RequestBuilder(Struct, frozen=True):
    """Makes engine requests, with the parts of the server that they need."""

    live: LiveSettings
    models: ServedModels
    schemas: Constraints
    chat_rules: ChatRules
    real: RealModel | None
    defaults: SamplingDefaults
    """Values of sampling parameters that a request omits."""

    def build(
        self,
        accepted: AcceptedRequest,
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        *,
        context: RequestContext,
        constraint: Constraint | None,
        writer: ResponseWriter,
    ) -> list[EngineRequest]:
        """Returns the engine's requests for all choices of all prompts.

        Raises:
            ApiError: 400 for invalid headers or tools.
        """
        if not prompts:
            return []
        request = accepted.request
        settings = self.live.current
        prompt = prompts[0]
        transfer = request.kv_transfer_params
        if transfer and not settings.kvcache.transfers:
            transfer = None
        if self.real is not None:
            self.real.check(request, prompt.features is not None)
        priority = request.priority
        if PRIORITY_HEADER in context.headers:
            priority = priority_of(context, priority)
        hit_threshold = request.cache_hit_threshold
        if hit_threshold is None:
            hit_threshold = settings.kvcache.global_cache_hit_threshold
        if CACHE_THRESHOLD_HEADER in context.headers and boolean_header(
            context, CACHE_THRESHOLD_HEADER
        ):
            hit_threshold = inf
        parts = ReplyParts()
        chat = request if isinstance(request, ChatCompletionRequest) else accepted.chat
        if chat is not None and (chat.tools or settings.reply.reasoning_parser):
            parts = self._parts(chat)
        form = None
        if self.real is not None:
            form = self.real.form(
                accepted.structured_outputs,
                parts.tool_calls,
                prompt.ids,
                thinks=parts.thinks != "no",
            )
        first = EngineRequest(
            request_id=meta.engine_id(0),
            index=0,
            model=accepted.model,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            turns=prompt.turns,
            max_tokens=accepted.max_tokens[0],
            arrival_s=context.arrival_s,
            sampling=accepted.sampling(self.defaults),
            tool_calls=parts.tool_calls,
            constraint=constraint,
            form=form,
            reasoning=parts.thinks != "no",
            only_thoughts=parts.thinks == "all",
            raw=accepted.chat is not None,
            adapter=self.models.adapter_of(accepted.model),
            priority=priority,
            cache_salt=request.cache_salt,
            media=() if prompt.features is None else placeholders(prompt.features),
            cache_hit_threshold=hit_threshold,
            image=writer.image,
            remote_prefill=bool(transfer and transfer.get("do_remote_prefill")),
            delays=context.delays,
            address=writer.transfer,
            source=transfer,
            n=accepted.n,
            beams=request.use_beam_search,
            length_penalty=request.length_penalty,
            engine=accepted.engine,
            num_choices=len(prompts) * accepted.n,
            observers=context.observers,
        )
        if first.num_choices == 1:
            return [first]
        return every_choice(first, accepted, meta, prompts)

    def _parts(self, request: ChatCompletionRequest) -> ReplyParts:
        """Returns the parts of a chat's reply.

        Raises:
            ApiError: 400 for invalid tools.
        """
        settings = self.live.current
        tool_calls = None
        if request.tools:
            from app.core.api.chat.tools import tool_calls_of  # not for chats without tools

            tool_calls = tool_calls_of(
                request,
                settings.tools,
                self.schemas,
                computes=self.real is not None,
            )
        thinks: Thinking = "no"
        parser = settings.reply.reasoning_parser
        if parser:
            rules = self.chat_rules
            thinks = thinking(request, parser, rules.template_kwargs, rules.efforts)
        return ReplyParts(tool_calls, thinks)


def claim_choices(count: int, id_length: int) -> None:
    """Claims the memory of several choices, with an id of `id_length` characters, but no tokens.

    Raises:
        MemoryFullError, MemoryExceededError: as `claim_memory`.
    """
    claim_memory(count * (CHOICE_BYTES + ID_COPIES * id_length))


def every_choice(
    first: EngineRequest,
    accepted: AcceptedRequest,
    meta: ResponseMeta,
    prompts: Sequence[BuiltPrompt],
) -> list[EngineRequest]:
    """Makes all n choices of each prompt, which differ in index and seed. Pauses between many.

    Raises:
        MemoryFullError, MemoryExceededError: as `claim_memory`.
        ClientLeftError: as `paced`.
    """
    claim_choices(first.num_choices, len(meta.id))
    requests: list[EngineRequest] = []
    for number, (prompt, max_tokens) in enumerate(
        paced(zip(prompts, accepted.max_tokens, strict=True))
    ):
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
        for choice in paced(range(1, first.n)):
            sampling = request.sampling
            if sampling.seed is not None:
                sampling = replace(sampling, seed=sampling.seed + choice)
            requests.append(replace(request, index=request.index + choice, sampling=sampling))
    return requests
