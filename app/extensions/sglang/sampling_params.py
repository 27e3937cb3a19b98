"""SGLang's sampling parameters, with its rules."""

import math

from msgspec import UNSET, Struct, UnsetType

from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import INT64_MAX, INT64_MIN, StructuredOutputs
from app.core.server.http.errors import bad_request

MAX_PROMPTS = 4096
"""Most prompts of a request, repeated ones (n) included. SGLang has no limit."""
DEFAULT_MAX_TOKENS = 128
MAX_STOP_STRINGS = 32
ANY_JSON = "$$ANY$$"
"""SGLang's schema for any JSON object."""


class SamplingParams(Struct, kw_only=True, forbid_unknown_fields=True):
    """SGLang's sampling parameters. None stands for the default."""

    max_new_tokens: int | None | UnsetType = UNSET
    """None: as many as fit the context. UNSET: as many, but at most `DEFAULT_MAX_TOKENS`."""
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    beam_width: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    custom_params: JsonObject | None = None
    watermark: JsonObject | None = None

    def check(self) -> None:
        """Applies SGLang's rules. Raises ApiError 400 with the name and the value of a field."""
        self._check_range("temperature", 0, math.inf, "a non-negative finite number")
        self._check_range("top_p", math.nextafter(0, 1), 1, "in (0, 1]")
        self._check_range("min_p", 0, 1, "in [0, 1]")
        self._check_range("frequency_penalty", -2, 2, "in [-2, 2]")
        self._check_range("presence_penalty", -2, 2, "in [-2, 2]")
        self._check_range("repetition_penalty", math.nextafter(0, 1), 2, "in (0, 2]")
        self._check_range("min_new_tokens", 0, math.inf, "at least 0")
        self._check_range("max_new_tokens", 0, math.inf, "at least 0")
        self._check_range("n", 1, MAX_PROMPTS, f"in [1, {MAX_PROMPTS}]")
        self._check_range("stream_interval", 1, math.inf, "at least 1")
        self._check_range("sampling_seed", INT64_MIN, INT64_MAX, "in [-2**63, 2**63 - 1]")
        if self.top_k is not None and self.top_k < 1 and self.top_k != -1:
            raise bad_request(f"top_k must be -1 (disable) or at least 1, got {self.top_k}.")
        limit = self.limit
        if limit is not None and (self.min_new_tokens or 0) > limit:
            raise bad_request(
                f"min_new_tokens must be in [0, max_new_tokens({limit})], "
                f"got {self.min_new_tokens}."
            )
        if isinstance(self.stop, list) and len(self.stop) > MAX_STOP_STRINGS:
            raise bad_request(f"at most {MAX_STOP_STRINGS} stop strings are allowed.")
        if self.stop_regex:
            raise bad_request("stop_regex is not simulated; use the stop parameter.")
        if (self.beam_width or 1) > 1:
            raise bad_request(
                "beam_width is not simulated; set use_beam_search in a completion request."
            )
        grammars = (self.json_schema, self.regex, self.ebnf, self.structural_tag)
        if sum(map(bool, grammars)) > 1:
            raise bad_request("Only one of json_schema, regex, ebnf, or structural_tag can be set.")

    def _check_range(self, name: str, minimum: float, maximum: float, words: str) -> None:
        value = getattr(self, name)
        if (
            value is None
            or value is UNSET
            or (minimum <= value <= maximum and math.isfinite(value))
        ):
            return
        raise bad_request(f"{name} must be {words}, got {str(value)[:40]}.")

    @property
    def limit(self) -> int | None:
        """Most tokens to generate; None for as many as fit the context."""
        if isinstance(self.max_new_tokens, UnsetType):
            return DEFAULT_MAX_TOKENS
        return self.max_new_tokens

    @property
    def form(self) -> StructuredOutputs | None:
        """The required form of the reply."""
        if self.json_schema == ANY_JSON:
            return StructuredOutputs(json_object=True)
        if self.json_schema:
            return StructuredOutputs(json=self.json_schema)
        if self.regex:
            return StructuredOutputs(regex=self.regex)
        if self.ebnf:
            return StructuredOutputs(grammar=self.ebnf)
        if self.structural_tag:
            return StructuredOutputs(structural_tag=self.structural_tag)
        return None
