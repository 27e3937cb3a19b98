"""What the generating API families share on the way from a decoded body to the engine and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from app.api.builder import Prompt, RequestBuilder, Wanted, truth
from app.api.chat.media import encoded
from app.api.data_parallel import check_rank
from app.api.identity import Identity
from app.api.models import ServedModels
from app.api.pieces import check_answer_size
from app.api.responder import Responder
from app.api.response_meta import ResponseMeta
from app.api.writer import ResponseWriter
from app.faults.injector import FaultInjector, fault_of
from app.http.body import BodyLimits
from app.http.context import RequestContext
from app.http.errors import ApiError, bad_request
from app.http.response import Response
from app.protocol.decoding import Request, decode
from app.protocol.transfer import ECTransferParams
from app.protocol.validation import limits as rules
from app.protocol.validation import model as model_rules
from app.protocol.validation.limits import GenerateRequest
from app.protocol.validation.model import ModelLimits
from app.tokenization import Tokenizer

T = TypeVar("T", bound=Request)


@dataclass(frozen=True, slots=True)
class Frontend:
    """Lets requests in, has them generated, and has the answers written."""

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
    rank: int = 0
    encoder_only: bool = False
    omni: bool = False
    plain_prompt_tokens: int = 1 << 30
    """Prompts of up to so many tokens are taken by the engine without a pause."""
    keeps_turns: bool = False
    """Prompts tell the texts of their messages, which datasets look for."""

    def decode(self, context: RequestContext, kind: type[T]) -> T:
        """The request in the body. ApiError 400, 408 or 413."""
        body = self.body.read(context)
        return decode(body, context.content_type, kind)

    def accept(self, request: GenerateRequest, context: RequestContext) -> str:
        """The model's name for the answer; ApiError when model, queue or lengths do not allow the request.

        Before all that, ApiError when it is to fail on purpose.
        """
        self.faults.inject(context, request.model)
        model = self.models.resolve(request.model)
        self.responder.engine.check_accepting(request.n or 1)
        rules.check_choices(request)
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(request, name, None):
                raise bad_request(f"{name} is for models that take more than text.", name)
        rules.check_lengths(request, self.limits.max_model_len)
        return model

    def check_text(self, text: str) -> None:
        """ApiError 400 for a text that cannot fit the context, before any work is done on it."""
        if len(text) > self.limits.max_model_len and self.tokenizer.longest_token is not None:
            rules.check_prompt_text(text, self.limits.max_model_len, self.tokenizer.longest_token)

    def fit(self, request: GenerateRequest, ids: Sequence[int]) -> Sequence[int]:
        """The part of a prompt that the request wants to keep; ApiError 400 when it exceeds the context."""
        kept = rules.truncate_prompt(ids, request, self.limits.max_model_len)
        rules.check_prompt_length(len(kept), self.limits.max_model_len)
        return kept

    def wants_image(self, context: RequestContext) -> bool:
        """True when an image should follow the reply: asked for by header, or drawn (simulator.md 2.2)."""
        return self.omni and self.builder.wants_image(truth(context, "x-send-image"))

    def encoded_media(self, hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
        """`ec_transfer_params` of an encoder's answer; None of any other's."""
        return encoded(hashes) if self.encoder_only else None

    def shape(self, request: GenerateRequest) -> dict[str, Any]:
        """The fields of `ResponseOptions` for this request."""
        options = request.stream_options
        wanted = options is not None and bool(options.include_usage)
        everywhere = wanted and bool(options and options.continuous_usage_stats)
        return {
            "n": request.n or 1,
            "include_usage": wanted or self.force_usage,
            "continuous_usage": everywhere or self.force_usage,
            "token_ids": bool(request.return_token_ids),
            "token_id_names": bool(request.return_tokens_as_token_ids),
            "prompt_details": self.prompt_details,
        }

    def generate(
        self,
        request: GenerateRequest,
        head: ResponseMeta,
        prompts: Sequence[Prompt],
        writer: ResponseWriter,
        context: RequestContext,
        image: bool = False,
        responder: Responder | None = None,
    ) -> Response:
        """The response. What only the engine would refuse comes, in a stream, after its 200."""
        responder = responder or self.responder
        limits = [self._max_tokens(request, prompt) for prompt in prompts]
        try:
            check_rank(context, self.rank)
            for prompt in prompts:
                model_rules.check_engine(request, prompt.ids, self.limits)
        except ApiError as error:
            if request.stream:
                return responder.broken(error, writer)
            raise
        together = len(prompts) * (request.n or 1)
        if not request.stream:
            entries = model_rules.wanted_logprobs(request)
            top = self.limits.vocab_size if entries == -1 else entries
            check_answer_size(together, max(limits, default=1), top)
        # Before as many engine requests are made as a hostile request asks for.
        responder.engine.check_admission(together)
        fault = fault_of(context)
        wanted = Wanted(
            head=head,
            arrival_s=context.arrival_s,
            together=together,
            priority=priority_of(request, context),
            image=image,
            observers=context.observers,
            delays=() if fault is None else fault.delays,
            missed=bool(truth(context, "x-cache-threshold-finish-reason")),
        )
        requests = [
            choice
            for number, prompt in enumerate(prompts)
            for choice in self.builder.choices(request, wanted, prompt, number, limits[number])
        ]
        return responder.respond(requests, writer, bool(request.stream), context)

    def _max_tokens(self, request: GenerateRequest, prompt: Prompt) -> int:
        """Tokens that may be generated; ApiError 400 when the sampling fields do not fit together."""
        wanted, _ = rules.requested_max_tokens(request)
        most = rules.resolve_max_tokens(wanted, len(prompt.ids), self.limits.max_model_len)
        rules.check_sampling(request, most)
        return max(most, 1)


def priority_of(request: GenerateRequest, context: RequestContext) -> int:
    """The priority of a request: its header's, or else its body's. ApiError 400 when it is no integer."""
    given = context.headers.get("x-vllm-priority")
    if given is None:
        return request.priority
    try:
        return int(given)
    except ValueError:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {given[:40]!r}") from None
