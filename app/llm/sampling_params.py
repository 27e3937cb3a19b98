"""Parameters of sampling and of the end of a reply; an unsupported value is refused at
construction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from json import dumps
from typing import Final, Self

from msgspec.structs import asdict, force_setattr

from app.engine.core.wire import Sampling, TextForm
from app.llm.errors import RequestError

MOST_STOPS: Final = 16
GREEDY_BELOW: Final = 1e-5
"""Temperature below which sampling is greedy, as in vLLM."""


class Priority(IntEnum):
    """Priorities with the names of nano-qwen3-serving and the order of vLLM:

    lower numbers first.
    """

    URGENT = -2
    HIGH = -1
    NORMAL = 0
    LOW = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """A structured output in vLLM's terms: exactly one field is set."""

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """A grammar in the notation of Lark or GBNF."""
    json_object: bool = False
    structural_tag: str | None = None
    """A structural tag as JSON text."""

    def __post_init__(self) -> None:
        given = (self.json, self.regex, self.choice or None, self.grammar, self.structural_tag)
        if sum(it is not None for it in given) + self.json_object != 1:
            raise RequestError(
                "structured_outputs should name one form: json, regex, choice or another."
            )

    @property
    def form(self) -> TextForm:
        schema = {"type": "object"} if self.json_object else self.json
        return TextForm(
            json_schema=schema if schema is None or isinstance(schema, str) else dumps(schema),
            regex=self.regex,
            choices=tuple(self.choice or ()),
            grammar=self.grammar,
            structural_tag=self.structural_tag,
        )


class SamplingParams(Sampling, frozen=True, kw_only=True):
    """Sampling parameters with the names and defaults of nano-qwen3-serving, further ones of vLLM."""

    top_k: int = -1
    """Most candidates; -1 and 0 are no limit."""
    max_tokens: int | None = 100
    """Most output tokens; None is as many as the model's length allows."""
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_sequences: Sequence[str] = ()
    """Older name of `stop`; both apply."""
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    structured_outputs: StructuredOutputsParams | TextForm | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    """Number of likeliest tokens beside the sampled one; 0 is the sampled one alone."""
    prompt_logprobs: int | None = None
    do_sample: bool = True
    """False is temperature 0."""
    use_cache: bool = True
    length_penalty: float = 1.0
    use_beam_search: bool = False
    num_beams: int = 1
    cache_precision: str | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_sequences"):
            if isinstance(getattr(self, name), str):
                force_setattr(self, name, (getattr(self, name),))
        longest = math.inf if self.max_tokens is None else self.max_tokens
        some_allowed = self.allowed_token_ids is None or len(self.allowed_token_ids) > 0
        texts = all(isinstance(stop, str) and stop for stop in self.stops)
        finite = all(map(math.isfinite, self.logit_bias.values()))
        rules = [
            ("temperature", 0.0 <= self.temperature <= 2.0, "in [0, 2]"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "in [0, 1]"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "in [-2, 2]"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "in [-2, 2]"),
            ("top_p", 0.0 < self.top_p <= 1.0, "in (0, 1]"),
            ("top_k", self.top_k >= -1, "-1 or 0 (no limit), or at least 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < math.inf, "greater than 0"),
            ("max_tokens", longest >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= longest, "from 0 to max_tokens"),
            ("n", 1 <= self.n <= 128, "from 1 to 128"),
            ("logprobs", (self.logprobs or 0) >= 0, "None, or at least 0"),
            ("prompt_logprobs", (self.prompt_logprobs or 0) >= 0, "None, or at least 0"),
            ("allowed_token_ids", some_allowed, "None, or name some"),
            ("logit_bias", finite, "made of numbers that are finite"),
            ("stop", len(self.stops) <= MOST_STOPS, f"at most {MOST_STOPS} strings"),
            ("stop", texts, "made of strings that are not empty"),
        ]
        for name, holds, should in rules:
            if not holds:
                raise RequestError(f"{name} should be {should}, got {getattr(self, name)!r}.")
        if self.use_beam_search or self.num_beams != 1 or self.length_penalty != 1.0:
            raise RequestError("Beam search is not supported: num_beams and length_penalty stay 1.")
        if not self.use_cache:
            raise RequestError("use_cache=False is not supported: every reply uses the KV cache.")
        if self.cache_precision is not None:
            raise RequestError(
                "cache_precision is not supported: the KV cache has the dtype of the model."
            )

    @property
    def is_greedy(self) -> bool:
        return not self.do_sample or self.temperature < GREEDY_BELOW

    @property
    def form(self) -> TextForm | None:
        wanted = self.structured_outputs
        return wanted.form if isinstance(wanted, StructuredOutputsParams) else wanted

    @property
    def stops(self) -> tuple[str, ...]:
        return (*self.stop, *self.stop_sequences)

    @property
    def penalises(self) -> bool:
        """True when earlier tokens change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @classmethod
    def greedy(cls, max_tokens: int = 100) -> Self:
        return cls(temperature=0.0, do_sample=False, max_tokens=max_tokens)

    @classmethod
    def creative(cls, max_tokens: int = 100) -> Self:
        return cls(temperature=0.8, top_p=0.9, top_k=50, max_tokens=max_tokens)

    @classmethod
    def balanced(cls, max_tokens: int = 100) -> Self:
        return cls(temperature=0.7, top_p=0.9, top_k=40, max_tokens=max_tokens)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def check_vocabulary(self, size: int) -> None:
        """Raises RequestError for a token id outside the vocabulary, or more logprobs than tokens."""
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name) or 0) > size:
                raise RequestError(f"{name}: {count} are more than the vocabulary of {size}.")
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                if not 0 <= token_id < size:
                    raise RequestError(
                        f"{name}: token id {token_id} is outside the vocabulary of {size}."
                    )
