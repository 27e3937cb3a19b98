"""Where a request becomes generations: the checks in vLLM's order, then one translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from app.api.builder import Asked, Prompt, RequestBuilder, truth
from app.api.chat.media import encoded
from app.api.data_parallel import check_rank
from app.api.identity import Identity
from app.api.models import ServedModels
from app.api.responder import Delivery
from app.api.response_meta import ResponseMeta
from app.api.writer import ResponseWriter
from app.http.body import BodyLimits
from app.http.environ import ARRIVAL
from app.http.errors import ApiError, bad_request
from app.http.response import Reply
from app.middleware.damage import delays_of
from app.middleware.faults import BODY, Faults
from app.protocol.decoding import decode
from app.protocol.request import Request
from app.protocol.transfer import ECTransferParams
from app.protocol.validation import limits as rules
from app.protocol.validation import model as model_limits
from app.protocol.validation.limits import GenerateRequest
from app.protocol.validation.model import ModelLimits
from app.tokenization import Tokenizer

T = TypeVar("T", bound=Request)


@dataclass(frozen=True, slots=True)
class Door:
    """What every API family needs to let a request in."""

    body: BodyLimits
    models: ServedModels
    tokenizer: Tokenizer
    identity: Identity
    delivery: Delivery
    translation: RequestBuilder
    faults: Faults
    limits: ModelLimits
    force_usage: bool
    prompt_details: bool
    rank: int = 0
    encoder_only: bool = False
    omni: bool = False
    keeps_turns: bool = False
    """Prompts tell the texts of their messages, which datasets look for."""

    def decode(self, environ: dict[str, Any], kind: type[T]) -> T:
        """The request in the body. ApiError 400, 408 or 413."""
        body = self.body.read(environ)
        environ[BODY] = hash(body)
        return decode(body, environ.get("CONTENT_TYPE"), kind)

    def enter(self, asked: GenerateRequest, environ: dict[str, Any]) -> str:
        """The model's name for the answer; ApiError when model, queue or lengths do not allow the request.

        Before all that, ApiError when it is to fail on purpose.
        """
        self.faults.strike(environ, asked.model)
        model = self.models.resolve(asked.model)
        self.delivery.service.preflight(asked.n or 1)
        rules.check_choices(asked)
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(asked, name, None):
                raise bad_request(f"{name} is for models that take more than text.", name)
        rules.check_lengths(asked, self.limits.max_model_len)
        return model

    def check_text(self, text: str) -> None:
        """ApiError 400 for a text that cannot fit the context, before any work is done on it."""
        if len(text) > self.limits.max_model_len and self.tokenizer.longest_token is not None:
            rules.check_prompt_text(text, self.limits.max_model_len, self.tokenizer.longest_token)

    def fit(self, asked: GenerateRequest, ids: Sequence[int]) -> Sequence[int]:
        """The part of a prompt that the request wants to keep; ApiError 400 when it exceeds the context."""
        kept = rules.truncate_prompt(ids, asked, self.limits.max_model_len)
        rules.check_prompt_length(len(kept), self.limits.max_model_len)
        return kept

    def wants_image(self, environ: Mapping[str, Any]) -> bool:
        """True when an image should follow the reply: asked for by header, or drawn (simulator.md 2.2)."""
        return self.omni and self.translation.wants_image(truth(environ, "HTTP_X_SEND_IMAGE"))

    def encoded_media(self, hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
        """`ec_transfer_params` of an encoder's answer; None of any other's."""
        return encoded(hashes) if self.encoder_only else None

    def shape(self, asked: GenerateRequest) -> dict[str, Any]:
        """The fields of `ResponseOptions` for this request."""
        options = asked.stream_options
        wanted = options is not None and bool(options.include_usage)
        everywhere = wanted and bool(options and options.continuous_usage_stats)
        return {
            "n": asked.n or 1,
            "include_usage": wanted or self.force_usage,
            "continuous_usage": everywhere or self.force_usage,
            "token_ids": bool(asked.return_token_ids),
            "token_id_names": bool(asked.return_tokens_as_token_ids),
            "prompt_details": self.prompt_details,
        }

    def play(
        self,
        asked: GenerateRequest,
        head: ResponseMeta,
        prompts: Sequence[Prompt],
        answer: ResponseWriter,
        environ: Mapping[str, Any],
        image: bool = False,
    ) -> Reply:
        """The response. What only the engine would refuse comes, in a stream, after its 200."""
        limits = [self._most_tokens(asked, prompt) for prompt in prompts]
        try:
            check_rank(environ, self.rank)
            for prompt in prompts:
                model_limits.check_engine(asked, prompt.ids, self.limits)
        except ApiError as error:
            if asked.stream:
                return self.delivery.broken(error, answer)
            raise
        together = len(prompts) * (asked.n or 1)
        # Before as many generations are made as a hostile request asks for.
        self.delivery.service.admit(together)
        missed = bool(truth(environ, "HTTP_X_CACHE_THRESHOLD_FINISH_REASON"))
        priority, delays = priority_of(asked, environ), delays_of(environ)
        meant = Asked(head, environ[ARRIVAL], together, priority, image, delays, missed)
        played = [
            choice
            for number, prompt in enumerate(prompts)
            for choice in self.translation.choices(asked, meant, prompt, number, limits[number])
        ]
        return self.delivery.reply(played, answer, bool(asked.stream), environ)

    def _most_tokens(self, asked: GenerateRequest, prompt: Prompt) -> int:
        """Tokens that may be generated; ApiError 400 when the sampling fields do not fit together."""
        wanted, _ = rules.requested_max_tokens(asked)
        most = rules.resolve_max_tokens(wanted, len(prompt.ids), self.limits.max_model_len)
        rules.check_sampling(asked, most)
        return max(most, 1)


def priority_of(asked: GenerateRequest, environ: Mapping[str, Any]) -> int:
    """The priority of a request: its header's, or else its body's. ApiError 400 when it is no integer."""
    told = environ.get("HTTP_X_VLLM_PRIORITY")
    if told is None:
        return asked.priority
    try:
        return int(told)
    except ValueError:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {told[:40]!r}") from None
