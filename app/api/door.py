"""Where a request becomes generations: the checks in vLLM's order, then one translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.api.answer import Answer
from app.api.body import BodyLimits
from app.api.delivery import Delivery
from app.api.head import Head
from app.api.identity import Identity
from app.api.models import ServedModels
from app.api.replies import Reply
from app.environ import ARRIVAL
from app.generation import Generation
from app.protocol import limits as rules
from app.protocol import model_limits
from app.protocol.decoding import decode
from app.protocol.errors import ApiError, bad_request
from app.protocol.limits import GenerateRequest
from app.protocol.model_limits import ModelLimits
from app.protocol.request import Request
from app.tokenization import Tokenizer

T = TypeVar("T", bound=Request)
NO_SEED = -1


class Prompt(Struct, frozen=True):
    """One prompt, and what mode `echo` makes of it."""

    ids: Sequence[int]
    echo_text: str


@dataclass(frozen=True, slots=True)
class Door:
    """What every API family needs to let a request in."""

    body: BodyLimits
    models: ServedModels
    tokenizer: Tokenizer
    identity: Identity
    delivery: Delivery
    limits: ModelLimits
    force_usage: bool
    prompt_details: bool

    def decode(self, environ: Mapping[str, Any], kind: type[T]) -> T:
        """The request in the body. ApiError 400, 408 or 413."""
        return decode(self.body.read(environ), environ.get("CONTENT_TYPE"), kind)

    def enter(self, asked: GenerateRequest) -> str:
        """The model's name for the answer; ApiError when model, queue or lengths do not allow the request."""
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

    def shape(self, asked: GenerateRequest) -> dict[str, Any]:
        """The fields of `AnswerShape` for this request."""
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
        head: Head,
        prompts: Sequence[Prompt],
        answer: Answer,
        environ: Mapping[str, Any],
    ) -> Reply:
        """The response. What only the engine would refuse comes, in a stream, after its 200."""
        limits = [self._most_tokens(asked, prompt) for prompt in prompts]
        try:
            for prompt in prompts:
                model_limits.check_engine(asked, prompt.ids, self.limits)
        except ApiError as error:
            if asked.stream:
                return self.delivery.broken(error)
            raise
        together = len(prompts) * (asked.n or 1)
        # Before as many generations are made as a hostile request asks for.
        self.delivery.service.admit(together)
        played = [
            choice
            for i, prompt in enumerate(prompts)
            for choice in _choices(
                self._first_choice(asked, head, i, prompt, limits[i], together, environ[ARRIVAL])
            )
        ]
        return self.delivery.reply(played, answer, bool(asked.stream), environ)

    def _most_tokens(self, asked: GenerateRequest, prompt: Prompt) -> int:
        """Tokens that may be generated; ApiError 400 when the sampling fields do not fit together."""
        wanted, _ = rules.requested_max_tokens(asked)
        most = rules.resolve_max_tokens(wanted, len(prompt.ids), self.limits.max_model_len)
        rules.check_sampling(asked, most)
        return max(most, 1)

    def _first_choice(
        self,
        asked: GenerateRequest,
        head: Head,
        number: int,
        prompt: Prompt,
        most_tokens: int,
        together: int,
        arrival_s: float,
    ) -> Generation:
        """The first choice of prompt `number`; the whole request has `together` choices."""
        n, stop = asked.n or 1, asked.stop or ()
        return Generation(
            request_id=head.id,
            index=number * n,
            model=head.model,
            prompt_ids=prompt.ids,
            echo_text=prompt.echo_text,
            max_tokens=most_tokens,
            limited=rules.requested_max_tokens(asked)[0] is not None,
            arrival_s=arrival_s,
            min_tokens=asked.min_tokens,
            ignore_eos=asked.ignore_eos,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=frozenset(asked.stop_token_ids or ()),
            include_stop=asked.include_stop_str_in_output,
            seed=None if asked.seed == NO_SEED else asked.seed,
            greedy=asked.temperature is not None and asked.temperature < rules.GREEDY_BELOW,
            logprobs=model_limits.wanted_logprobs(asked),
            prompt_logprobs=model_limits.wanted_prompt_logprobs(asked),
            n=n,
            together=together,
        )


def _choices(first: Generation) -> list[Generation]:
    """All n choices of a prompt: they differ in their place and, if there is one, their seed."""
    others = (
        replace(first, index=first.index + k, seed=None if first.seed is None else first.seed + k)
        for k in range(1, first.n)
    )
    return [first, *others]
