"""Validation of a request for generation by all rules, in vLLM's order (vllm-api.md section 4).

Rules about sampling parameters run before the answer starts: their errors have a status even for a
stream. Each rule runs once; `ValidatedRequest` keeps the values derived from the fields. All rules
raise `ApiError`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from app.serving.http.errors import ApiError, bad_request
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.options import INT64_MIN, StructuredOutputs

GenerationRequest = ChatCompletionRequest | CompletionRequest
R = TypeVar("R", bound=GenerationRequest, covariant=True)
TokenIds = Sequence[int]
Ids = TypeVar("Ids", list[int], TokenIds)

MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 16384
GREEDY_BELOW = 1e-5
UINT64_END = 2**64

Range = tuple[str, Callable[[float], bool], str, str | None]
"""A field, its valid values as a function and in words, and the `param` of an error."""
RANGES: Sequence[Range] = (
    ("presence_penalty", lambda value: -2 <= value <= 2, "in [-2, 2]", None),
    ("frequency_penalty", lambda value: -2 <= value <= 2, "in [-2, 2]", None),
    ("repetition_penalty", lambda value: 0 < value < math.inf, "a finite number above 0", None),
    ("temperature", lambda value: 0 <= value <= 2, "in [0, 2]", "temperature"),
    ("top_p", lambda value: 0 < value <= 1, "in (0, 1]", "top_p"),
    ("top_k", lambda value: value >= -1, "0 (off) or at least 1", None),
    ("min_p", lambda value: 0 <= value <= 1, "in [0, 1]", None),
)
UNSEARCHED: dict[str, object] = {
    **{
        "stop": [],
        "stop_token_ids": [],
        "bad_words": [],
        "min_tokens": 0,
        "routed_experts_prompt_start": 0,
    },
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "seed", "logit_bias", "allowed_token_ids", "prompt_logprobs")
    ),
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "repetition_penalty", "repetition_detection")
    ),
    **dict.fromkeys(
        ("structured_outputs", "response_format", "thinking_token_budget", "vllm_xargs")
    ),
}
"""Fields that a beam search ignores, with the values that disable them."""


def too_long(max_model_len: int, problem: str, param: str | None = None) -> ApiError:
    """Returns an error with the phrase that clients, such as litellm, read as a prompt that is too
    long.
    """
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens{problem}", param
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of the served model:

    context and vocabulary in tokens, log probabilities per token (-1: all).
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    reasons: bool = False
    parses: bool = False
    """Reasoning or tool calls are parsed from the model's output."""
    max_new_tokens: int | None = None
    """Most tokens of any reply, from the model's generation_config.json."""

    def room_behind(self, prompt_tokens: int, requested: int | None = None) -> int:
        """Returns the most tokens of a reply after a prompt; 0 or less when the prompt fills the
        context.
        """
        room = self.max_model_len - prompt_tokens
        for most in (self.max_new_tokens, requested):
            room = room if most is None else min(room, most)
        return room

    def logprobs(self, wanted: int | None) -> int:
        """Returns log probabilities per token: the vocabulary's size for -1 (all), 0 for None."""
        return self.vocab_size if wanted == -1 else wanted or 0

    def check_logprobs(self, param: str, wanted: int | None) -> None:
        count, most = self.logprobs(wanted), self.logprobs(self.max_logprobs)
        if count > most:
            raise bad_request(f"{count} {param} were asked for, at most {most} are possible", param)

    def check_vocabulary(self, param: str, token_ids: TokenIds) -> None:
        if not self._knows(token_ids):
            raise bad_request(
                f"{param} are not all in the vocabulary of {self.vocab_size} tokens", param
            )

    def check_prompt(self, prompt_ids: TokenIds) -> None:
        """Requires tokens of this vocabulary, and room for one more."""
        if not prompt_ids:
            raise bad_request("the prompt has no tokens")
        if len(prompt_ids) >= self.max_model_len:
            raise too_long(self.max_model_len, f": a prompt of {len(prompt_ids)} leaves no room.")
        if not self._knows(prompt_ids):
            raise bad_request("a token id of the prompt is not in the vocabulary")

    def _knows(self, token_ids: TokenIds) -> bool:
        return not token_ids or min(token_ids) >= 0 and max(token_ids) < self.vocab_size


def check_depth(schema: object, levels: int = MAX_SCHEMA_DEPTH) -> None:
    if isinstance(schema, dict | list):
        if levels == 0:
            raise bad_request(f"a JSON schema nests at most {MAX_SCHEMA_DEPTH} levels")
        for item in schema.values() if isinstance(schema, dict) else schema:
            check_depth(item, levels - 1)


def check_ranges(request: GenerationRequest) -> None:
    for name, fits, words, param in RANGES:
        value = getattr(request, name)
        if value is not None and not fits(value):
            raise bad_request(f"{name} must be {words}, got {value}", param)


def requested_max_tokens(request: GenerationRequest) -> tuple[int | None, str]:
    """Returns the request's token limit, None without one, and the field's name."""
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens, "max_completion_tokens"
    return request.max_tokens, "max_tokens"


def check_prompt_length(prompt_tokens: int, max_model_len: int) -> None:
    if prompt_tokens > max_model_len:
        raise too_long(
            max_model_len, f", and the prompt alone has {prompt_tokens}.", "input_tokens"
        )


def fit_prompt(request: GenerationRequest, token_ids: TokenIds, max_model_len: int) -> TokenIds:
    """Returns the part that `truncate_prompt_tokens` keeps; -1:

    all that fits, with a token if asked for.
    """
    keep = request.truncate_prompt_tokens
    if keep is not None and keep < 0:
        keep = max_model_len - 1 if requested_max_tokens(request)[0] else max_model_len
    return truncate(token_ids, keep, request.truncation_side, max_model_len)


def truncate(token_ids: Ids, keep: int | None, side: str | None, max_model_len: int) -> Ids:
    """Returns the first `keep` ids, or for side "left" the last; None:

    all. ApiError above the context.
    """
    if keep is not None and keep < len(token_ids):
        token_ids = token_ids[len(token_ids) - keep :] if side == "left" else token_ids[:keep]
    check_prompt_length(len(token_ids), max_model_len)
    return token_ids


class ValidatedRequest(Generic[R]):
    """A request for generation by `model`, with values derived from its fields.

    The constructor's rules run before any work on the prompts. `check_sampling` follows when the
    prompts are tokens, `check_engine` when the engine takes the request. All three raise
    `ApiError`.
    """

    def __init__(self, request: R, model: str, limits: ModelLimits) -> None:
        """Refuses choices, lengths and media options that are invalid for any prompt."""
        if request.use_beam_search:
            request = replace(request, **UNSEARCHED)
        self.request = request
        self.model = model
        self.n = 1 if request.n is None else request.n
        self.requested, name = requested_max_tokens(request)
        if self.n < 1:
            raise bad_request(f"n must be at least 1, got {self.n}")
        if self.n > MAX_CHOICES:
            raise bad_request(f"n must be at most {MAX_CHOICES}, got {self.n}")
        for option in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(request, option, None):
                raise bad_request(f"{option} is for models that take more than text.", option)
        most, kept = limits.max_model_len, request.truncate_prompt_tokens
        for param, tokens in ((name, self.requested), ("truncate_prompt_tokens", kept)):
            if tokens is not None and tokens > most:
                raise bad_request(
                    f"{param}={tokens} is more than the context of {most} tokens", param
                )
        stop, temperature = request.stop or (), request.temperature
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        self.seed = None if request.seed == -1 else request.seed
        self.greedy = temperature is not None and temperature < GREEDY_BELOW
        top = request.logprobs if isinstance(request, CompletionRequest) else None
        if isinstance(request, ChatCompletionRequest) and request.logprobs:
            top = request.top_logprobs
        self.logprobs = len(request.logprob_token_ids) if request.logprob_token_ids else top
        """Alternatives per generated token (-1: all); None without log probabilities."""
        self.prompt_logprobs = request.prompt_logprobs
        """Alternatives per prompt token; echo alone requests as many as for generated tokens."""
        if request.use_beam_search:
            self.logprobs = None if top is None else min(limits.logprobs(top), 2 * self.n + 1)
        elif request.echo and self.prompt_logprobs is None:
            self.prompt_logprobs = (
                request.top_logprobs if isinstance(request, ChatCompletionRequest) else top
            )
        self.max_tokens: Sequence[int] = ()
        """Most tokens to generate for each prompt; set by `check_sampling`."""
        self.structured_outputs: StructuredOutputs | None = None
        """Constraints from all fields of the request; set by `check_sampling`."""
        self.stop_token_ids: frozenset[int] = frozenset()
        self._biased_ids: TokenIds = ()
        self._limits = limits

    def check_sampling(self, prompt_tokens: Sequence[int]) -> None:
        """Checks sampling parameters against each other, for prompts of these lengths."""
        if not prompt_tokens:
            return
        request, limits = self.request, self._limits
        most = [limits.room_behind(tokens, self.requested) for tokens in prompt_tokens]
        self.max_tokens = most if min(most) > 0 else [max(tokens, 1) for tokens in most]
        self.structured_outputs = constrained_outputs(request)
        key = ""
        try:
            if request.logit_bias:
                self._biased_ids = [int(key := each) for each in request.logit_bias]
        except ValueError:
            raise bad_request(
                f"logit_bias takes token ids as keys, got {key[:40]!r}", "logit_bias"
            ) from None
        if request.use_beam_search:
            return
        if request.vllm_xargs or request.kv_transfer_params or request.ec_transfer_params:
            check_extra_arguments(request)
        check_ranges(request)
        self._check_token_counts(most[0])
        if request.stop == "" or "" in self.stop or "" in request.bad_words:
            raise bad_request("stop and bad_words must not contain an empty string")
        if self.n > 1 and self.greedy:
            raise bad_request(f"n must be 1 with greedy sampling, got {self.n}")
        for tokens in most[1:]:
            self._check_token_counts(tokens)

    def _check_token_counts(self, max_tokens: int) -> None:
        """Requires at least 1 and `min_tokens`; echo alone allows 0."""
        request = self.request
        if request.max_tokens == 0 and request.echo and isinstance(request, CompletionRequest):
            max_tokens = 1
        if max_tokens < 1:
            raise bad_request(f"max_tokens must be at least 1, got {max_tokens}", "max_tokens")
        if request.min_tokens < 0:
            raise bad_request(f"min_tokens must be at least 0, got {request.min_tokens}")
        if request.min_tokens > max_tokens:
            raise bad_request(
                f"min_tokens={request.min_tokens} is more than max_tokens={max_tokens}"
            )

    def check_engine(self, prompts: Sequence[TokenIds]) -> None:
        """Checks the request and its prompts against the model; a stream's error comes in the
        stream.
        """
        if not prompts:
            return
        request, limits = self.request, self._limits
        if request.use_beam_search:
            limits.check_logprobs("logprobs", 2 * self.n)  # each step of the search needs this many
            check_ranges(request)
        else:
            self._check_token_ids()
        if self.structured_outputs is not None:
            check_constraint(self.structured_outputs)
        if request.thinking_token_budget is not None and not limits.reasons:
            raise bad_request("thinking_token_budget needs a reasoning parser")
        for number, prompt_ids in enumerate(prompts):
            limits.check_prompt(prompt_ids)
            if request.routed_experts_prompt_start > len(prompt_ids):
                name = "routed_experts_prompt_start"
                raise bad_request(f"{name} lies behind the prompt", name)
            if not number and not all(map(str.strip, request.bad_words)):
                raise bad_request("each of bad_words needs at least one token", "bad_words")
            if not number and len(set(request.bad_words)) > MAX_BAD_WORDS:
                raise bad_request(f"at most {MAX_BAD_WORDS} bad_words are possible", "bad_words")

    def _check_token_ids(self) -> None:
        request, limits, by_id = self.request, self._limits, self.request.logprob_token_ids
        if self.logprobs and not by_id:
            limits.check_logprobs("logprobs", self.logprobs)
        if by_id and len(by_id) > MAX_LOGPROB_TOKEN_IDS:
            problem = (
                f"at most {MAX_LOGPROB_TOKEN_IDS} logprob_token_ids are possible, got {len(by_id)}"
            )
            raise bad_request(problem, "logprob_token_ids")
        if self.prompt_logprobs:
            limits.check_logprobs("prompt_logprobs", self.prompt_logprobs)
        for param in ("logprob_token_ids", "logit_bias", "stop_token_ids", "allowed_token_ids"):
            ids = self._biased_ids if param == "logit_bias" else getattr(request, param)
            if ids:
                limits.check_vocabulary(param, ids)
        if request.allowed_token_ids == []:
            raise bad_request("allowed_token_ids must not be empty", "allowed_token_ids")
        self.stop_token_ids = frozenset(request.stop_token_ids or ())

    @property
    def entries_per_prompt_token(self) -> int:
        """Log probabilities in the answer per token of a prompt, alternatives included."""
        return (
            0 if self.prompt_logprobs is None else 1 + self._limits.logprobs(self.prompt_logprobs)
        )

    @property
    def entries_per_token(self) -> int:
        """Log probabilities in the answer per generated token, alternatives included."""
        return 0 if self.logprobs is None else 1 + self._limits.logprobs(self.logprobs)


def constrained_outputs(request: GenerationRequest) -> StructuredOutputs | None:
    wanted, form = request.structured_outputs, request.response_format
    if form is None or form.type == "text":
        return wanted
    fields: dict[str, object] = msgspec.structs.asdict(wanted) if wanted else {}
    if form.type == "json_object":
        fields["json_object"] = True
    elif form.type == "json_schema":
        fields["json"] = form.json_schema.json_schema if form.json_schema else None
    else:
        tag: JsonObject = {"format": form.format}
        if form.format is None:
            tag = {"structures": form.structures, "triggers": form.triggers}
        try:
            fields["structural_tag"] = msgspec.json.encode(tag).decode()
        except RecursionError:
            raise bad_request("response_format is nested too deeply", "response_format") from None
    return StructuredOutputs(**fields)  # type: ignore[arg-type]


def check_constraint(wanted: StructuredOutputs) -> None:
    if wanted.choice == []:
        raise bad_request("structured_outputs.choice must not be empty")
    for name in ("grammar", "json", "structural_tag"):
        text = getattr(wanted, name)
        if isinstance(text, str) and not text.strip():
            raise bad_request(f"structured_outputs.{name} must not be empty")
    check_depth(wanted.json)
    if wanted.json_object is False:
        raise bad_request("structured_outputs.json_object is true or absent")
    if wanted.regex is not None and "\0" in wanted.regex:
        raise bad_request("structured_outputs.regex must not contain NUL")


def check_extra_arguments(request: GenerationRequest) -> None:
    pending: list[object] = [
        request.vllm_xargs,
        request.kv_transfer_params,
        request.ec_transfer_params,
    ]
    while pending:
        value = pending.pop()
        if isinstance(value, int) and not INT64_MIN <= value < UINT64_END:
            raise bad_request("integers of extra arguments must fit 64 bits", "extra_args")
        if isinstance(value, dict | list):
            pending.extend(value.values() if isinstance(value, dict) else value)
