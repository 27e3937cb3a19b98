"""The sampling parameters of a request, in vLLM's terms: one record for all APIs and engines.

Every API family converts its requests into a `Sampling`; the simulated model, the real engine and
the render routes read nothing else. `SAMPLING_FIELDS` has the ranges of its fields, and
`normalized` has vLLM's rules that change values.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Annotated, Any, Final, NamedTuple, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

MIN_TEMPERATURE: Final = 0.01
"""Lowest temperature other than 0; vLLM raises lower ones, which could overflow."""
MIN_ABOVE_ZERO: Final = math.nextafter(0, 1)
MAX_FINITE: Final = sys.float_info.max
GREEDY_VALUES: Final[Mapping[str, Any]] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Values that vLLM sets where the temperature is 0: nothing is drawn."""


class RepetitionDetection(Struct, kw_only=True):
    """Conditions for ending a reply that repeats itself. Sizes are in tokens; 0 disables it."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of one choice, with vLLM's names, meanings and defaults."""

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Collection[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = None
    """The client's own limit. `EngineRequest.max_tokens` is limited to the context, too."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Alternatives wanted per generated token; None when no log probabilities are wanted."""
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] = ()
    """Token ids of the alternatives, if the client names them."""
    logit_bias: Mapping[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None

    @property
    def is_greedy(self) -> bool:
        """True when the likeliest token is always next: the same prompt gets the same reply."""
        return self.temperature == 0

    @property
    def is_limited(self) -> bool:
        """True when the client gave a limit of tokens; other replies have drawn lengths."""
        return self.max_tokens is not None

    def normalized(self) -> Self:
        """Returns the parameters with the values that vLLM uses in place of the client's."""
        changes: dict[str, Any] = {}
        if self.seed == -1:
            changes["seed"] = None
        if self.top_k == -1:
            changes["top_k"] = 0
        if self.temperature == 0:
            changes |= GREEDY_VALUES
        elif self.temperature < MIN_TEMPERATURE:
            changes["temperature"] = MIN_TEMPERATURE
        if not changes:
            return self
        return replace(self, **changes)


class SamplingField(NamedTuple):
    """A row of the table of fields: how a request's value becomes that of `Sampling`."""

    name: str
    minimum: float = -math.inf
    maximum: float = math.inf
    words: str = ""
    """The range, for error messages; empty for a field whose range `rules` or the schema checks."""
    param: str | None = None
    """`param` of vLLM's error for a value out of range."""
    convert: Callable[[Any], object] | None = None
    """Converts a value that is not empty. Empty and null mean the default of the model or vLLM."""
    is_computed: bool = True
    """False for a field with which the real engine rejects a request."""


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns the stop strings; a text stands for a list of one."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _bias_by_token(bias: Mapping[str, float]) -> dict[int, float]:
    return dict(zip(map(int, bias), bias.values(), strict=True))


SAMPLING_FIELDS: Final[Sequence[SamplingField]] = (
    SamplingField("presence_penalty", -2, 2, "in [-2, 2]"),
    SamplingField("frequency_penalty", -2, 2, "in [-2, 2]"),
    SamplingField("repetition_penalty", MIN_ABOVE_ZERO, MAX_FINITE, "greater than zero"),
    SamplingField("temperature", 0, 2, "in [0, 2]", param="temperature"),
    SamplingField("top_p", MIN_ABOVE_ZERO, 1, "in (0, 1]", param="top_p"),
    SamplingField("top_k", -1, math.inf, "0 (disable), or at least 1"),
    SamplingField("min_p", 0, 1, "in [0, 1]"),
    SamplingField("seed"),
    SamplingField("stop", convert=stop_strings),
    SamplingField("stop_token_ids", convert=frozenset),
    SamplingField("include_stop_str_in_output"),
    SamplingField("ignore_eos"),
    SamplingField("max_tokens"),
    SamplingField("min_tokens"),
    SamplingField("logprobs"),
    SamplingField("prompt_logprobs"),
    SamplingField("logprob_token_ids", convert=tuple, is_computed=False),
    SamplingField("logit_bias", convert=_bias_by_token),
    SamplingField("allowed_token_ids", convert=tuple),
    SamplingField("bad_words", convert=tuple),
    SamplingField("skip_special_tokens"),
    SamplingField("thinking_token_budget", is_computed=False),
    SamplingField("repetition_detection"),
)
"""All fields. vLLM checks the ranges in this order."""
SIMULATED_FIELDS: Final = tuple(field.name for field in SAMPLING_FIELDS if not field.is_computed)


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """Values of omitted sampling parameters, as the model's generation_config.json sets them."""

    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None

    def sampling_of(self, request: Struct, **derived: Any) -> Sampling:
        """Returns the sampling parameters of a request, which has passed all checks.

        `derived` are values that depend on more than the field of the same name.
        """
        reader = _reader_of(type(request))
        parameters: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        values = reader.values(request)
        # Most values are null: loops over all fields would take longer than all else here.
        parameters.update(
            compress(zip(reader.names, values, strict=True), map(is_not, values, repeat(None)))
        )
        values = reader.converted_values(request)
        if any(values):
            for (name, convert), value in zip(reader.converted, values, strict=True):
                if value:
                    parameters[name] = convert(value)
        parameters.update(derived)
        return Sampling(**parameters).normalized()


class RequestReader(NamedTuple):
    """Reads the sampling fields of one type of requests."""

    names: Sequence[str]
    values: Callable[[Struct], Sequence[Any]]
    """Returns the values of the fields `names`."""
    converted: Sequence[tuple[str, Callable[[Any], object]]]
    """The other fields, with their converters."""
    converted_values: Callable[[Struct], Sequence[Any]]
    """Returns the values of these fields."""


@cache
def _reader_of(request_type: type[Struct]) -> RequestReader:
    names: list[str] = []
    converted: list[tuple[str, Callable[[Any], object]]] = []
    for field in SAMPLING_FIELDS:
        if field.name not in request_type.__struct_fields__:
            continue
        if field.convert is None:
            names.append(field.name)
        else:
            converted.append((field.name, field.convert))
    converted_names = [name for name, _ in converted]
    return RequestReader(names, attrgetter(*names), converted, attrgetter(*converted_names))
