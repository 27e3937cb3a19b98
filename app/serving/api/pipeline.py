"""Shared path of the generating API families: from a decoded body to the engine and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from app.base.clock.pause import Slices
from app.engine.core.request import Constraint
from app.serving.api.builder import RANK, BuiltPrompt, RequestBuilder, check_rank
from app.serving.api.chat.media import encoded
from app.serving.api.chat.tools import constraint_of, tag_of
from app.serving.api.identity import Identity, ResponseMeta
from app.serving.api.models import ServedModels
from app.serving.api.responder import Responder
from app.serving.api.writer import ResponseWriter, UsageOverrides
from app.serving.faults.injector import FaultInjector
from app.serving.http.body import BodyLimits
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response
from app.serving.protocol.common import ECTransferParams
from app.serving.protocol.decoding import Request, decode
from app.serving.protocol.validation import (
    GenerationRequest,
    ModelLimits,
    ValidatedRequest,
    check_prompt_text,
    fit_prompt,
)
from app.text import Tokenizer
from config.sections.api import ApiSettings, json_object

if TYPE_CHECKING:
    from app.serving.api.script import ScriptResolver  # imports templates, too, which few servers need

SLICE = 12_000
"""Values processed between two pauses: about 4 ms."""
CHARS = 2
"""Characters of a text to tokenize that count as one processed value."""

T = TypeVar("T", bound=Request)
R = TypeVar("R", bound=GenerationRequest)


MAX_ANSWER_BYTES = 64 << 20
"""Most memory, in bytes, of one whole answer in the process."""
TOKEN_BYTES = 48
"""Memory of a token until its answer is written, in bytes: text and id, here and in the engine.

Measured in the process: 36 bytes, with 128 choices of 4,000 tokens.
"""
ENTRY_BYTES = 80
"""Memory of a log probability in an answer, in bytes; about 75 are JSON."""
MOST_REPEATED = 1 << 20
"""Most token ids and characters of prompts that a stream repeats at its start: about 20 ms of work."""
MOST_REPEATED_LOGPROBS = 20_000
"""Most log probabilities of prompts that a stream repeats at its start: about 10 ms of work."""


def check_answer_size(n: int, tokens: int, entries: int) -> None:
    """Raises ApiError 400 when `n` choices of so many tokens and log probabilities are too large.

    The limit is 1,398,101 tokens, or 838,860 log probabilities, including alternatives and prompts. A
    stream has no such limit: nothing is kept.
    """
    size = tokens * TOKEN_BYTES + entries * ENTRY_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"n={n} choices of up to {tokens} tokens and {entries} log probabilities together would take "
            f"{size >> 20} MiB, more than {MAX_ANSWER_BYTES >> 20}. Ask for less, or for a stream."
        )


def check_repeated(param: str, values: int, entries: int = 0) -> None:
    """Raises ApiError 400 for a stream that repeats too many values or log probabilities of its prompts."""
    for count, most, what in (
        (values, MOST_REPEATED, "token ids and characters"),
        (entries, MOST_REPEATED_LOGPROBS, "log probabilities"),
    ):
        if count > most:
            raise bad_request(f"A stream repeats at most {most} {what} of prompts, not {count}.", param)


class ChatRules(Struct, frozen=True):
    """Rules of a server for rendering conversations."""

    trusts_templates: bool = False
    """Requests may bring their own chat templates."""
    template_kwargs: Mapping[str, object] = {}
    """Arguments of the template that a request may override."""
    hides_unused_tools: bool = False
    """Leaves tools that must not be called out of the prompt."""

    @classmethod
    def of(cls, api: ApiSettings) -> ChatRules:
        kwargs = json_object(api.default_chat_template_kwargs or "{}")
        return cls(api.trust_request_chat_template, kwargs, api.exclude_tools_when_tool_choice_none)


@dataclass(frozen=True, slots=True)
class RequestPipeline:
    """Admits requests, submits them to the engine, and has answers written."""

    body: BodyLimits
    models: ServedModels
    tokenizer: Tokenizer
    identity: Identity
    responder: Responder
    builder: RequestBuilder
    faults: FaultInjector
    limits: ModelLimits
    force_usage: bool
    prompt_details: bool
    token_id_names: bool = False
    """Log probabilities name tokens `token_id:N`, unless the request decides."""
    request_metrics: bool = False
    """Answers carry the times of their request."""
    response_role: str = "assistant"
    chat_rules: ChatRules = ChatRules()
    rank: int = 0
    encoder_only: bool = False
    omni: bool = False
    plain_prompt_tokens: int = 1 << 30
    """Longest prompt, in tokens, that the engine takes without a pause."""
    keeps_turns: bool = False
    """Prompts carry the texts of their messages, which datasets look up."""
    scripts: ScriptResolver | None = None
    """Decides replies by scripts; None without scripts."""
    asks_plugins: bool = False
    """Plugins decide about replies, and need more than a plain request carries."""
    slices: Slices = field(default_factory=partial(Slices, SLICE))
    """Counts texts of all requests that become tokens, and pauses now and then."""

    def decode(self, context: RequestContext, kind: type[T]) -> T:
        """Returns the request in the body. ApiError 400, 408 or 413."""
        body = self.body.read(context)
        return decode(body, context.content_type, kind)

    def admit(self, request: R, context: RequestContext) -> ValidatedRequest[R]:
        """Validates the request as far as possible before its prompts are tokens.

        ApiError for an injected fault, or when model, queue or lengths forbid the request.
        """
        self.faults.inject(context, request.model)
        model = self.models.resolve(request.model)
        self.responder.engine.check_accepting(request.n or 1)
        return ValidatedRequest(request, model, self.limits)

    def check_text(self, text: str) -> None:
        """Raises ApiError 400 for a text that cannot fit the context, before any work on it.

        Pauses now and then, as tokenization comes next.
        """
        self.slices.spend(1 + len(text) // CHARS)
        if len(text) > self.limits.max_model_len and self.tokenizer.longest_token is not None:
            check_prompt_text(text, self.limits.max_model_len, self.tokenizer.longest_token)

    def fit(self, request: GenerationRequest, ids: Sequence[int]) -> Sequence[int]:
        """Returns the part of a prompt that the request keeps. ApiError 400 when it exceeds the context."""
        return fit_prompt(request, ids, self.limits.max_model_len)

    def encoded_media(self, hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
        """Returns `ec_transfer_params` of an encoder's answer; None for other models."""
        return encoded(hashes) if self.encoder_only else None

    def options(self, asked: ValidatedRequest[GenerationRequest]) -> dict[str, Any]:
        """Returns the fields of `ResponseOptions` for this request."""
        request = asked.request
        options, names = request.stream_options, request.return_tokens_as_token_ids
        usage = options is not None and bool(options.include_usage)
        everywhere = usage and options is not None and bool(options.continuous_usage_stats)
        return {
            "n": asked.n,
            "include_usage": usage or self.force_usage,
            "continuous_usage": everywhere or self.force_usage,
            "token_ids": bool(request.return_token_ids),
            "token_id_names": self.token_id_names if names is None else names,
            "prompt_details": self.prompt_details and not request.use_beam_search,
            "metrics": self.request_metrics,
        }

    def submit(
        self,
        asked: ValidatedRequest[GenerationRequest],
        meta: ResponseMeta,
        prompts: Sequence[BuiltPrompt],
        writer: ResponseWriter,
        context: RequestContext,
        image: bool = False,
        responder: Responder | None = None,
    ) -> Response:
        """Submits the request and returns the response.

        A stream carries the engine's refusals after its 200.
        """
        responder, request, stream = responder or self.responder, asked.request, bool(asked.request.stream)
        transfer = request.kv_transfer_params
        if transfer and transfer.get("do_remote_prefill"):
            # The answer repeats how many of the prompt's tokens the prefill side had cached.
            cached = transfer.get("remote_prefill_cached_tokens")
            if isinstance(cached, int):
                writer.usage = UsageOverrides(cached_tokens=cached)
        asked.check_sampling([len(prompt.ids) for prompt in prompts])
        form, constraint = asked.structured_outputs, None
        if form is not None and form.structural_tag is not None:
            constraint = Constraint(grammar=tag_of(form.structural_tag, request, self.builder.schemas))
        try:
            if RANK in context.headers:
                check_rank(context, self.rank)
            asked.check_engine([prompt.ids for prompt in prompts])
            if form is not None and constraint is None:
                constraint = constraint_of(form, self.builder.schemas)
        except ApiError as error:
            if stream:
                return responder.broken(error, writer)
            raise
        together = len(prompts) * asked.n
        # Without a limit replies are short, unless their end is ignored.
        if not stream and (asked.requested is not None or request.ignore_eos):
            tokens, prompt_tokens = (
                asked.n * sum(asked.max_tokens),
                sum(len(prompt.ids) for prompt in prompts),
            )
            entries = tokens * asked.entries_per_token
            entries += asked.n * prompt_tokens * asked.entries_per_prompt_token
            check_answer_size(together, tokens, entries)
        if together > 1:  # a hostile request must not make too many engine requests
            responder.engine.check_admission(together)
        requests = self.builder.build(asked, meta, prompts, context, constraint, image)
        if self.scripts is not None:
            requests = self.scripts.direct(request, prompts, requests, writer, context)
        return responder.respond(requests, writer, stream, context)
