"""Options of a computing model: sampling, thoughts, and constraints on its text."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from app.engine.core.request import ToolCalls
from app.engine.core.wire import Sampling, TextForm, Thoughts
from app.serving.http.errors import bad_request
from app.serving.protocol.options import StructuredOutputs
from app.serving.protocol.validation import GenerationRequest

ANY_OBJECT = '{"type": "object"}'
SIMULATED_ALONE = (
    *("use_beam_search", "cache_hit_threshold", "repetition_detection"),
    *("thinking_token_budget", "logprob_token_ids"),
)
"""Fields that no computing model supports."""
MOST_LOOKED_AT: Final = 32_768
"""Tokens at the end of a prompt that are searched for the last tag of thoughts."""


class ThoughtTokens(Struct, frozen=True):
    """The two tokens around a model's thoughts; `decode` returns the text of tokens."""

    begin_id: int
    end_id: int
    decode: Callable[[Sequence[int]], str]

    def after(self, prompt_ids: Sequence[int]) -> Thoughts | None:
        """Returns the thoughts behind a prompt, which its end may have begun; None for closed ones."""
        tail = list(prompt_ids[-MOST_LOOKED_AT:])
        tags = (self.begin_id, self.end_id)
        place = next((i for i in range(len(tail) - 1, -1, -1) if tail[i] in tags), None)
        if place is not None and tail[place] == self.begin_id:
            return Thoughts(end_id=self.end_id)
        if place is not None and not self.decode(tail[place + 1 :]).strip():
            return None
        return Thoughts(end_id=self.end_id, begin_id=self.begin_id)


def text_form(wanted: StructuredOutputs | None, calls: ToolCalls | None) -> TextForm | None:
    """Returns the constraint on the text:

    required calls are a list, a named tool's are its arguments.
    """
    if calls is not None and calls.min_calls:
        schema = calls.tools[0].schema
        if not calls.named:
            kinds = []
            for tool in calls.tools:
                call = {"name": {"type": "string", "enum": [tool.name]}, "parameters": tool.schema}
                closed = {"required": [*call], "additionalProperties": False}
                kinds.append({"type": "object", "properties": call, **closed})
            most = {"maxItems": 1} if calls.max_calls == 1 else {}
            schema = {
                "type": "array",
                "minItems": calls.min_calls,
                "items": {"anyOf": kinds},
                **most,
            }
        return TextForm(json_schema=msgspec.json.encode(schema).decode())
    if wanted is None:
        return None
    if wanted.json is not None:
        given = wanted.json
        return TextForm(
            json_schema=given if isinstance(given, str) else msgspec.json.encode(given).decode()
        )
    if wanted.json_object:
        return TextForm(json_schema=ANY_OBJECT)
    if wanted.choice:
        return TextForm(choices=tuple(wanted.choice))
    return TextForm(
        regex=wanted.regex, grammar=wanted.grammar, structural_tag=wanted.structural_tag
    )


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """Values of omitted sampling parameters; vLLM takes them from the model's
    generation_config.json.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None

    def of(self, request: GenerationRequest) -> Sampling:
        allowed, bias = request.allowed_token_ids, request.logit_bias
        penalties = request.presence_penalty, request.frequency_penalty
        return replace(
            self.of_plain(request.temperature, request.top_p, *penalties),
            top_k=max(0, self.top_k if request.top_k is None else request.top_k),
            min_p=_or(request.min_p, self.min_p),
            repetition_penalty=_or(request.repetition_penalty, self.repetition_penalty),
            logit_bias={int(token): value for token, value in bias.items()} if bias else {},
            allowed_token_ids=None if allowed is None else tuple(allowed),
            bad_words=tuple(request.bad_words),
            skip_special_tokens=request.skip_special_tokens,
        )

    def of_plain(
        self,
        temperature: float | None,
        top_p: float | None,
        presence: float | None,
        frequency: float | None,
    ) -> Sampling:
        return Sampling(
            temperature=_or(temperature, self.temperature),
            top_p=_or(top_p, self.top_p),
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=_or(presence, 0.0),
            frequency_penalty=_or(frequency, 0.0),
        )


class RealModel(Struct, frozen=True, kw_only=True):
    defaults: SamplingDefaults = SamplingDefaults()
    thoughts: ThoughtTokens | None = None


def check_real(request: GenerationRequest, has_media: bool) -> None:
    """Raises ApiError 400 for features that only a simulation or vLLM's own engine supports."""
    if has_media:
        raise bad_request(
            f"{request.model or 'The model'} is not a multimodal model: it reads text alone."
        )
    transfer = request.kv_transfer_params or {}
    asked = [name for name in SIMULATED_ALONE if getattr(request, name)]
    if transfer.get("do_remote_prefill") or transfer.get("do_remote_decode"):
        asked.append("kv_transfer_params")
    for name in asked:
        raise bad_request(f"The engine of this server does not support {name}.", name)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
