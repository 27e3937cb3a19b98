"""Parameters of sampling and of the end of a reply.

An unsupported value is rejected at construction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from json import dumps
from typing import Final, Self

from msgspec.structs import asdict, force_setattr

from app.core.engine.choice_request import TextForm
from app.core.engine.sampling import (
    MIN_TEMPERATURE,
    SAMPLING_FIELDS,
    SIMULATED_FIELDS,
    Sampling,
)
from app.extensions.llm.errors import RequestError

MAX_STOPS: Final = 16


class Priority(IntEnum):
    """Priorities with the names of nano-qwen3-serving and the order of vLLM.

    Lower numbers come first.
    """

    URGENT = -2
    HIGH = -1
    NORMAL = 0
    LOW = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """A structured output in vLLM's terms: exactly one field is set.

    Raises:
        RequestError: No field is set, or several.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """A grammar in the notation of Lark or GBNF."""
    json_object: bool = False
    structural_tag: str | None = None
    """A structural tag as JSON text."""

    def __post_init__(self) -> None:
        values = (self.json, self.regex, self.choice or None, self.grammar, self.structural_tag)
        if sum(value is not None for value in values) + self.json_object != 1:
            raise RequestError(
                "structured_outputs must have exactly one constraint, such as json, regex, "
                "or choice."
            )

    @property
    def form(self) -> TextForm:
        """The structured output in the engine's terms."""
        schema = self.json
        if self.json_object:
            schema = {"type": "object"}
        if schema is not None and not isinstance(schema, str):
            schema = dumps(schema)
        return TextForm(
            json_schema=schema,
            regex=self.regex,
            choices=tuple(self.choice or ()),
            grammar=self.grammar,
            structural_tag=self.structural_tag,
        )


class SamplingParams(Sampling, frozen=True, kw_only=True):
    """Sampling parameters with the names and defaults of nano-qwen3-serving, and more of vLLM.

    Raises:
        RequestError: A value is out of range or not supported.
    """

    top_k: int = -1
    """Maximum number of candidates; -1 and 0 are no limit."""
    max_tokens: int | None = 100
    """Maximum number of output tokens; None is as many as the model's length allows."""
    stop_sequences: Sequence[str] = ()
    """Older name of `stop`; both apply."""
    structured_outputs: StructuredOutputsParams | TextForm | None = None
    n: int = 1
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
        if 0 < self.temperature < MIN_TEMPERATURE:
            force_setattr(self, "temperature", MIN_TEMPERATURE)
        max_tokens = math.inf
        if self.max_tokens is not None:
            max_tokens = self.max_tokens
        allows_any = self.allowed_token_ids is None or len(self.allowed_token_ids) > 0
        are_texts = all(isinstance(stop, str) and stop for stop in self.stops)
        are_finite = all(map(math.isfinite, self.logit_bias.values()))
        rules = [
            (field.name, field.minimum <= getattr(self, field.name) <= field.maximum, field.words)
            for field in SAMPLING_FIELDS
            if field.words
        ]
        rules += [
            ("max_tokens", max_tokens >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= max_tokens, "from 0 to max_tokens"),
            ("n", 1 <= self.n <= 128, "from 1 to 128"),
            ("logprobs", (self.logprobs or 0) >= 0, "None, or at least 0"),
            ("prompt_logprobs", (self.prompt_logprobs or 0) >= 0, "None, or at least 0"),
            ("allowed_token_ids", allows_any, "None, or name some"),
            ("logit_bias", are_finite, "made of numbers that are finite"),
            ("stop", len(self.stops) <= MAX_STOPS, f"at most {MAX_STOPS} strings"),
            ("stop", are_texts, "made of strings that are not empty"),
        ]
        for name, is_valid, expected in rules:
            if not is_valid:
                raise RequestError(f"{name} must be {expected}, got {getattr(self, name)!r}.")
        self._check_support()

    def _check_support(self) -> None:
        if self.use_beam_search or self.num_beams != 1 or self.length_penalty != 1.0:
            raise RequestError(
                "Beam search is not supported: num_beams and length_penalty must be 1."
            )
        for name in SIMULATED_FIELDS:
            if getattr(self, name) not in ((), None):
                raise RequestError(f"{name} is not supported.")
        if not self.use_cache:
            raise RequestError(
                "use_cache=False is not supported, because every reply uses the KV cache."
            )
        if self.cache_precision is not None:
            raise RequestError(
                "cache_precision is not supported, because the KV cache uses the model's dtype."
            )

    @property
    def is_greedy(self) -> bool:
        """True when the likeliest token is always next."""
        return not self.do_sample or self.temperature == 0

    @property
    def form(self) -> TextForm | None:
        """The structured output, if any."""
        outputs = self.structured_outputs
        if isinstance(outputs, StructuredOutputsParams):
            return outputs.form
        return outputs

    @property
    def stops(self) -> tuple[str, ...]:
        """All stop strings."""
        return (*self.stop, *self.stop_sequences)

    @property
    def penalizes(self) -> bool:
        """True when earlier tokens change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @classmethod
    def greedy(cls, max_tokens: int = 100) -> Self:
        """Returns parameters with which the likeliest token is always next."""
        return cls(temperature=0.0, do_sample=False, max_tokens=max_tokens)

    @classmethod
    def creative(cls, max_tokens: int = 100) -> Self:
        """Returns parameters for varied replies."""
        return cls(temperature=0.8, top_p=0.9, top_k=50, max_tokens=max_tokens)

    @classmethod
    def balanced(cls, max_tokens: int = 100) -> Self:
        """Returns parameters between greedy and creative."""
        return cls(temperature=0.7, top_p=0.9, top_k=40, max_tokens=max_tokens)

    def to_dict(self) -> dict[str, object]:
        """Returns the parameters by name."""
        return asdict(self)

    def check_vocabulary(self, size: int) -> None:
        """Raises RequestError for an unknown token id, or more logprobs than tokens."""
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name) or 0
            if count > size:
                raise RequestError(f"{name}: {count} exceeds the vocabulary of {size} tokens.")
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                if not 0 <= token_id < size:
                    raise RequestError(
                        f"{name}: token ID {token_id} is outside the vocabulary of {size} tokens."
                    )
