"""Validation of a request for generation, in vLLM's order of rules.

Rules about sampling parameters run before the answer starts: their errors have a status even for a
stream. Each rule runs once; `ValidatedRequest` keeps the values derived from the fields. All rules
raise `ApiError`. Start reading at `ValidatedRequest`.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.core.base.clock.pause import paced
from app.core.engine.sampling import SAMPLING_FIELDS, Sampling, SamplingDefaults, stop_strings
from app.core.protocol import rules
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.options import INT64_MIN, StructuredOutputs
from app.core.server.http.errors import MAX_SHOWN_CHARS, ApiError, bad_request
from app.core.text.base import KeptTokens, TokenIdError

GenerationRequest = ChatCompletionRequest | CompletionRequest
R = TypeVar("R", bound=GenerationRequest, covariant=True)
TokenIds = Sequence[int]
Ids = TypeVar("Ids", list[int], TokenIds)

MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 16384
UINT64_END = 2**64
BEAM_SEARCH_VALUES: dict[str, object] = {
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "min_tokens": 0,
    "routed_experts_prompt_start": 0,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "seed": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "prompt_logprobs": None,
    "presence_penalty": None,
    "frequency_penalty": None,
    "repetition_penalty": None,
    "repetition_detection": None,
    "structured_outputs": None,
    "response_format": None,
    "thinking_token_budget": None,
    "vllm_xargs": None,
}
"""Fields that a beam search ignores, with the values that disable them."""
MEDIA_OPTIONS = (("mm_processor_kwargs", "preprocessing"), ("media_io_kwargs", "media loading"))
"""Fields for trusted clients, each with the part of the server that they change."""
FINITE_FIELDS = ("temperature", "repetition_penalty")
"""Sampling parameters with an error of their own for numbers that are not finite."""
RANGES = [field for field in SAMPLING_FIELDS if field.words]
sampling_values = attrgetter("min_tokens", *[field.name for field in RANGES])
"""Returns the values of these fields, after the minimum of tokens."""
NO_SAMPLING_VALUES = (0, *[None] * len(RANGES))


def too_long(max_model_len: int, size: str, param: str, value: int) -> ApiError:
    """Returns vLLM's error for a prompt of `size` that is too long.

    Agents recognize its words, and parse its numbers to shorten their prompts.
    """
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains {size}. Please reduce the length of the input prompt.",
        param,
        value,
    )


class RequestRules(Struct, frozen=True, kw_only=True):
    """Rules of requests that differ between versions of vLLM; the defaults are the newest."""

    rejects_beam_token_ids: bool = True
    """`allowed_token_ids` of a beam search are an error instead of ignored."""
    reserves_reply_token: bool = True
    """The truncation -1 leaves a token for the reply of a chat without a limit of tokens."""
    overflow: Callable[[int, int, int], ApiError] | None = None
    """Returns the error for a context, a limit of tokens, and a prompt whose sum exceeds the
    context; None: the limit is lowered."""
    counts_prompts: bool = False
    """Errors of prompts that are too long have the number of all their tokens."""
    continues_forced_usage: bool = True
    """With `enable_force_include_usage`, each chunk of a stream has usage, not only the last."""
    checks_stop_ids: bool = True
    """`stop_token_ids` have to be in the vocabulary."""


class ModelLimits(Struct, frozen=True, kw_only=True):
    """Limits of the served model. Context and vocabulary are in tokens."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    """Most log probabilities per token; -1: all of the vocabulary."""
    reasons: bool = False
    """A parser separates reasoning from the model's output."""
    parses: bool = False
    """Reasoning or tool calls are parsed from the model's output."""
    max_new_tokens: int | None = None
    """Most tokens of any reply, from the model's generation_config.json."""
    rules: RequestRules = RequestRules()

    def max_reply_tokens(self, prompt_tokens: int, requested: int | None = None) -> int:
        """Returns the most tokens of a reply; 0 or less when the prompt fills the context."""
        max_tokens = self.max_model_len - prompt_tokens
        for limit in (self.max_new_tokens, requested):
            if limit is not None and limit < max_tokens:
                max_tokens = limit
        return max_tokens

    def logprobs(self, requested: int | None) -> int:
        """Returns log probabilities per token: the vocabulary's size for -1 (all), 0 for None."""
        if requested == -1:
            return self.vocab_size
        return requested or 0

    def check_logprobs(self, param: str, requested: int | None) -> None:
        """Raises `ApiError` for more log probabilities per token than the server allows."""
        count = self.logprobs(requested)
        limit = self.logprobs(self.max_logprobs)
        if count > limit:
            kind = "prompt" if param == "prompt_logprobs" else "sample"
            raise bad_request(
                f"Requested {kind} logprobs of {count}, which is greater than max allowed: {limit}",
                param,
                count,
            )

    def kept_tokens(self, max_tokens: int | None, *, from_end: bool) -> KeptTokens | None:
        """Returns the tokens of a text that `truncate` keeps, or that show that it is too long.

        None stands for all tokens.
        """
        if max_tokens is None:
            return None if self.rules.counts_prompts else KeptTokens(self.max_model_len + 1)
        if max_tokens < 0:
            max_tokens = self.max_model_len
        return KeptTokens(max_tokens, from_end)

    def check_vocabulary(self, param: str, token_ids: TokenIds) -> None:
        """Raises `ApiError` that names all token ids which are not in the vocabulary."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
            unknown_ids = [token for token in paced(token_ids) if not 0 <= token < self.vocab_size][
                :MAX_SHOWN_CHARS
            ]
            message = (
                f"token_id(s) {unknown_ids} in {param} contain out-of-vocab token ids. "
                f"Vocabulary size: {self.vocab_size}"
            )
            if param == "allowed_token_ids":
                message = "allowed_token_ids contains out-of-vocab token id!"
            raise bad_request(message, param, unknown_ids)

    def check_prompt(self, prompt_ids: TokenIds) -> None:
        """Requires tokens of this vocabulary, and room for one generated token."""
        if not prompt_ids:
            raise bad_request("The decoder prompt cannot be empty")
        if len(prompt_ids) >= self.max_model_len:
            raise bad_request(
                f"The decoder prompt (length {len(prompt_ids)}) plus the number of requested "
                "output tokens (at least 1) is longer than the maximum model length of "
                f"{self.max_model_len}."
            )
        for token_id in (min(prompt_ids), max(prompt_ids)):
            if not 0 <= token_id < self.vocab_size:
                raise bad_request(str(TokenIdError(token_id)))


def check_media_options(request: Struct) -> None:
    """Raises `ApiError` for options of media, which a server accepts from trusted clients only."""
    for option, purpose in MEDIA_OPTIONS:
        if getattr(request, option, None):
            raise bad_request(
                f"Per-request {option} are disabled by default because they can change multimodal"
                f" {purpose} resource usage. Start the server with --trust-request-mm-kwargs only"
                " when clients are trusted.",
                option,
            )


def check_depth(schema: object, levels: int = MAX_SCHEMA_DEPTH) -> None:
    """Raises `ApiError` for JSON that nests deeper than `levels` objects and lists."""
    if isinstance(schema, dict):
        schema = list(schema.values())
    if isinstance(schema, list):
        if levels == 0:
            raise bad_request(
                f"a JSON schema must not have more than {MAX_SCHEMA_DEPTH} nested levels"
            )
        for item in paced(schema):
            check_depth(item, levels - 1)


def check_ranges(request: GenerationRequest) -> None:
    """Raises `ApiError` for a sampling parameter out of its range."""
    for field in RANGES:
        value = getattr(request, field.name)
        if value is not None and not field.minimum <= value <= field.maximum:
            words = field.words
            if not math.isfinite(value) and field.name in FINITE_FIELDS:
                words = "a finite number"
            elif field.name == "temperature" and value < 0:
                words = "non-negative"
            message = f"{field.name} must be {words}, got {value}."
            if field.param is None:
                raise bad_request(message)
            raise bad_request(message, field.param, value)


def requested_max_tokens(request: GenerationRequest) -> tuple[int | None, str]:
    """Returns the request's limit of generated tokens, or None, and the name of its field."""
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens, "max_completion_tokens"
    return request.max_tokens, "max_tokens"


def check_prompt_length(prompt_tokens: int, max_model_len: int, is_text: bool = False) -> None:
    """Raises `ApiError` for a prompt longer than the context.

    vLLM stops tokenizing a text at the first token beyond the context.
    """
    if prompt_tokens <= max_model_len:
        return
    min_tokens = max_model_len + 1
    if is_text:
        prompt_tokens = min_tokens
    qualifier = "at least " if prompt_tokens == min_tokens else ""
    raise too_long(
        max_model_len,
        f"{qualifier}{prompt_tokens} input tokens, which exceeds this limit even without any "
        "output tokens",
        param="input_tokens",
        value=prompt_tokens,
    )


def fit_prompt(
    request: GenerationRequest,
    token_ids: TokenIds,
    max_model_len: int,
    *,
    rules: RequestRules,
    is_text: bool = False,
) -> TokenIds:
    """Returns the part of a prompt that `truncate_prompt_tokens` keeps: the end by default.

    -1 keeps as much as fits the context, less one token if the request limits its reply, or, by the
    `rules`, all tokens of the limit.
    """
    max_tokens = request.truncate_prompt_tokens
    if max_tokens is None and len(token_ids) <= max_model_len:
        return token_ids
    if max_tokens is not None and max_tokens < 0:
        max_tokens = max_model_len
        reply_tokens, _ = requested_max_tokens(request)
        if reply_tokens and rules.overflow:
            max_tokens -= reply_tokens
        elif reply_tokens or (reply_tokens is None and rules.reserves_reply_token):
            max_tokens -= 1
    kept_ids = truncate(token_ids, max_tokens, request.truncation_side or "left")
    check_prompt_length(len(kept_ids), max_model_len, is_text and not rules.counts_prompts)
    return kept_ids


def check_truncation(max_tokens: int, max_model_len: int) -> None:
    """Raises `ApiError` for a `truncate_prompt_tokens` longer than the context."""
    if max_tokens > max_model_len:
        raise bad_request(
            f"truncate_prompt_tokens={max_tokens} cannot be greater than max_model_len = "
            f"{max_model_len}. Please request a smaller truncation size.",
            "truncate_prompt_tokens",
            max_tokens,
        )


def truncate(token_ids: Ids, max_tokens: int | None, side: str | None) -> Ids:
    """Returns the first `max_tokens` ids, or the last for side "left"; all ids for None."""
    if max_tokens is not None and max_tokens < len(token_ids):
        start = len(token_ids) - max_tokens if side == "left" else 0
        token_ids = token_ids[start : start + max_tokens]
    return token_ids


def beam_search_values(request: GenerationRequest, limits: ModelLimits) -> dict[str, object]:
    """Returns the fields that a beam search prescribes.

    A search without a step ends with its first beam.
    """
    values: dict[str, object] = dict(BEAM_SEARCH_VALUES)
    if limits.rules.rejects_beam_token_ids:
        del values["allowed_token_ids"]
    max_tokens, _ = requested_max_tokens(request)
    if max_tokens == 0 and request.n in range(1, MAX_CHOICES + 1):
        values["n"] = 1
    return values


class ValidatedRequest(Generic[R]):
    """A request for generation by `model`, with values derived from its fields.

    The constructor's rules run before any work on the prompts. `check_sampling` follows when the
    prompts are tokens, `check_engine` when the engine takes the request. All three raise
    `ApiError`.
    """

    chat: ChatCompletionRequest | None = None
    """The chat whose rendered prompt the request has; its reply is that of the chat, as text."""

    def __init__(self, request: R, model: str, limits: ModelLimits) -> None:
        """Rejects choices, lengths and media options that are invalid for any prompt."""
        if request.use_beam_search:
            request = replace(request, **beam_search_values(request, limits))
        self.request = request
        self.model = model
        self.n = 1 if request.n is None else request.n
        self.engine: int | None = None
        """Position of the only engine that may run the request; None: any."""
        self.requested, max_tokens_field = requested_max_tokens(request)
        """The request's own limit of generated tokens."""
        if self.n < 1:
            raise bad_request(f"n must be at least 1, got {self.n}.")
        if self.n > MAX_CHOICES:
            raise bad_request(
                f"n must be at most {MAX_CHOICES}, got {self.n}. To increase this limit, "
                "set the VLLM_MAX_N_SEQUENCES environment variable."
            )
        if isinstance(request, ChatCompletionRequest) and (
            request.mm_processor_kwargs or request.media_io_kwargs
        ):
            check_media_options(request)
        context_tokens = limits.max_model_len
        requested = self.requested or 0
        if requested > context_tokens and not limits.rules.counts_prompts:
            raise bad_request(
                f"{max_tokens_field}={requested} cannot be greater than "
                f"max_model_len={context_tokens}. Please request fewer output tokens.",
                max_tokens_field,
                requested,
            )
        if request.truncate_prompt_tokens is not None:
            check_truncation(request.truncate_prompt_tokens, context_tokens)
        if isinstance(request, ChatCompletionRequest):
            echo_logprobs = request.top_logprobs
            logprobs = echo_logprobs if request.logprobs else None
        else:
            echo_logprobs = request.logprobs
            logprobs = echo_logprobs
        self.logprobs = len(request.logprob_token_ids or ()) or logprobs
        """Alternatives per generated token (-1: all); None without log probabilities."""
        self.prompt_logprobs = request.prompt_logprobs
        """Alternatives per prompt token; echo alone requests as many as for generated tokens."""
        if request.use_beam_search:
            self.logprobs = _beam_logprobs(logprobs, self.n, limits)
        elif request.echo and self.prompt_logprobs is None:
            self.prompt_logprobs = echo_logprobs
        self.max_tokens: Sequence[int] = ()
        """Most tokens to generate for each prompt; set by `check_sampling`."""
        self.structured_outputs: StructuredOutputs | None = None
        """Constraints from all fields of the request; set by `check_sampling`."""
        self._biased_ids: TokenIds = ()
        self._limits = limits

    def sampling(self, defaults: SamplingDefaults) -> Sampling:
        """Returns the sampling parameters of the choices; the request has passed all checks."""
        return defaults.sampling_of(
            self.request,
            max_tokens=self.requested,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )

    def check_sampling(self, prompt_tokens: Sequence[int]) -> None:
        """Checks sampling parameters against each other, for prompts of these lengths."""
        if not prompt_tokens:
            return
        request = self.request
        reply_tokens = self._reply_tokens(prompt_tokens)
        min_tokens = int(not request.use_beam_search)
        self.max_tokens = [*map(partial(max, min_tokens), reply_tokens)]
        self.structured_outputs = request.structured_outputs
        if request.response_format is not None:
            self.structured_outputs = combine_constraints(request)
        if request.logit_bias:
            self._biased_ids = _biased_token_ids(request.logit_bias)
        if request.use_beam_search:
            return
        if request.vllm_xargs or request.kv_transfer_params or request.ec_transfer_params:
            check_extra_arguments(request)
        # Most requests set none of these fields, and then cannot break the rules about them.
        is_plain = sampling_values(request) == NO_SAMPLING_VALUES and min(reply_tokens) > 0
        if not is_plain:
            check_ranges(request)
            self._check_token_counts(reply_tokens[0])
        if request.stop == "" or "" in (*(request.stop or ()), *request.bad_words):
            raise _empty_word(request)
        # vLLM raises any other temperature to a minimum first.
        if self.n > 1 and request.temperature == 0:
            raise bad_request(f"n must be 1 when using greedy sampling, got {self.n}.")
        for tokens in () if is_plain else reply_tokens[1:]:
            self._check_token_counts(tokens)

    def _reply_tokens(self, prompt_tokens: Sequence[int]) -> list[int]:
        """Returns the most tokens of each reply; older versions require room for all of a limit."""
        requested = self.requested or 0
        limits = self._limits
        max_model_len = limits.max_model_len
        overflow = limits.rules.overflow
        if overflow and max(prompt_tokens) + requested > max_model_len:
            raise overflow(max_model_len, requested, max(prompt_tokens))
        max_reply_tokens = partial(limits.max_reply_tokens, requested=self.requested)
        lengths = prompt_tokens if len(prompt_tokens) == 1 else paced(prompt_tokens)
        return list(map(max_reply_tokens, lengths))

    def _check_token_counts(self, max_tokens: int) -> None:
        """Requires room for 1 and for `min_tokens` tokens; echo alone allows 0."""
        request = self.request
        if request.max_tokens == 0 and request.echo and isinstance(request, CompletionRequest):
            max_tokens = 1
        if max_tokens < 1:
            message = f"max_tokens must be at least 1, got {max_tokens}."
            raise bad_request(message, "max_tokens", max_tokens)
        if request.min_tokens < 0:
            raise bad_request(
                f"min_tokens must be greater than or equal to 0, got {request.min_tokens}."
            )
        if request.min_tokens > max_tokens:
            raise bad_request(
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, "
                f"got {request.min_tokens}."
            )

    def check_engine(self, prompts: Sequence[TokenIds]) -> None:
        """Checks the request and its prompts against the model.

        A stream sends the error as an event.
        """
        if not prompts:
            return
        request = self.request
        limits = self._limits
        if request.use_beam_search:
            self._check_beams()
        elif (
            self.logprobs
            or self.prompt_logprobs
            or self._biased_ids
            or request.logprob_token_ids
            or request.stop_token_ids
            or request.allowed_token_ids is not None
        ):
            self._check_token_ids()
        if self.structured_outputs is not None:
            check_constraint(self.structured_outputs)
        if request.thinking_token_budget is not None and not limits.reasons:
            raise bad_request(
                "thinking_token_budget is set but reasoning_config is not configured. Please set "
                "--reasoning-parser and/or --reasoning-config to use thinking_token_budget."
            )
        bad_words = request.bad_words
        for prompt_ids in prompts if len(prompts) == 1 else paced(prompts):
            limits.check_prompt(prompt_ids)
            if request.routed_experts_prompt_start > len(prompt_ids):
                raise bad_request(
                    "routed_experts_prompt_start is beyond the end of the prompt",
                    "routed_experts_prompt_start",
                )
            if not all(map(str.strip, bad_words)):
                raise bad_request(
                    "each entry in bad_words must have at least one token", "bad_words"
                )
            if bad_words and len(set(paced(bad_words))) > MAX_BAD_WORDS:
                raise bad_request(f"at most {MAX_BAD_WORDS} bad_words are allowed", "bad_words")
            bad_words = []  # all prompts share them

    def _check_beams(self) -> None:
        if self.request.allowed_token_ids is not None:
            raise bad_request("Beam search does not support allowed_token_ids.")
        # Each step of the search needs this many candidates.
        self._limits.check_logprobs("logprobs", 2 * self.n)
        check_ranges(self.request)

    def _check_token_ids(self) -> None:
        request = self.request
        limits = self._limits
        logprob_ids = request.logprob_token_ids
        if self.logprobs and not logprob_ids:
            limits.check_logprobs("logprobs", self.logprobs)
        if logprob_ids and len(logprob_ids) > MAX_LOGPROB_TOKEN_IDS:
            raise bad_request(
                f"at most {MAX_LOGPROB_TOKEN_IDS} logprob_token_ids are allowed, "
                f"got {len(logprob_ids)}",
                "logprob_token_ids",
            )
        if self.prompt_logprobs:
            limits.check_logprobs("prompt_logprobs", self.prompt_logprobs)
        for param in ("logprob_token_ids", "logit_bias", "stop_token_ids", "allowed_token_ids"):
            ids = self._biased_ids if param == "logit_bias" else getattr(request, param)
            if ids and (param != "stop_token_ids" or limits.rules.checks_stop_ids):
                limits.check_vocabulary(param, ids)
        if request.allowed_token_ids == []:
            raise bad_request(
                "allowed_token_ids is not None and empty!", "allowed_token_ids", value=[]
            )

    @property
    def entries_per_prompt_token(self) -> int:
        """Log probabilities in the answer per token of a prompt, alternatives included."""
        if self.prompt_logprobs is None:
            return 0
        return 1 + self._limits.logprobs(self.prompt_logprobs)

    @property
    def entries_per_token(self) -> int:
        """Log probabilities in the answer per generated token, alternatives included."""
        if self.logprobs is None:
            return 0
        return 1 + self._limits.logprobs(self.logprobs)


def _empty_word(request: GenerationRequest) -> ApiError:
    """Returns the error for an empty text among those that end or must not be in a reply."""
    if "" in stop_strings(request.stop):
        return bad_request("stop cannot contain an empty string.")
    words = str(request.bad_words[:MAX_SHOWN_CHARS])[:MAX_SHOWN_CHARS]
    return bad_request(f"bad_words cannot contain an empty string. Got bad_words={words}")


def _beam_logprobs(logprobs: int | None, beams: int, limits: ModelLimits) -> int | None:
    if logprobs is None:
        return None
    return min(limits.logprobs(logprobs), 2 * beams + 1)


def _biased_token_ids(logit_bias: Collection[str]) -> list[int]:
    token_ids: list[int] = []
    invalid_keys: list[str] = []
    for key in paced(logit_bias):
        try:
            token_ids.append(int(key))
        except ValueError:
            invalid_keys.append(key)
    if invalid_keys:
        del invalid_keys[MAX_SHOWN_CHARS:]
        raise bad_request(
            "logit_bias contains key(s) that cannot be converted to integer token IDs: "
            f"{invalid_keys}",
            "logit_bias",
            invalid_keys,
        )
    return token_ids


def combine_constraints(request: GenerationRequest) -> StructuredOutputs | None:
    """Returns the constraints of `structured_outputs` and `response_format` together."""
    constraints = request.structured_outputs
    form = request.response_format
    if form is None or form.type == "text":
        return constraints
    fields: dict[str, object] = msgspec.structs.asdict(constraints) if constraints else {}
    if form.type == "json_object":
        fields["json_object"] = True
    elif form.type == "json_schema":
        fields["json"] = form.json_schema and form.json_schema.json_schema
    else:
        tag: JsonObject = {"format": form.format}
        if form.format is None:
            tag = {"structures": form.structures, "triggers": form.triggers}
        try:
            fields["structural_tag"] = msgspec.json.encode(tag).decode()
        except RecursionError:
            raise bad_request("response_format is nested too deeply", "response_format") from None
    return StructuredOutputs(**fields)  # type: ignore[arg-type]


AcceptedRequest = ValidatedRequest[GenerationRequest]


def check_constraint(constraints: StructuredOutputs) -> None:
    """Raises `ApiError` for constraints that the engine cannot compile."""
    if constraints.choice == []:
        raise bad_request("structured_outputs.choice must not be empty")
    for name in ("grammar", "json", "structural_tag"):
        text = getattr(constraints, name)
        if isinstance(text, str) and not text.strip():
            raise bad_request(f"structured_outputs.{name} must not be empty")
    check_depth(constraints.json)
    if constraints.json_object is False:
        raise bad_request("structured_outputs.json_object must be true or absent")
    if constraints.regex is not None and "\0" in constraints.regex:
        raise bad_request("structured_outputs.regex must not contain NUL")


def check_extra_arguments(request: GenerationRequest) -> None:
    """Raises `ApiError` for an integer that a 64-bit number cannot hold."""
    arguments = [request.vllm_xargs, request.kv_transfer_params, request.ec_transfer_params]
    for value in rules.nested_values(arguments):
        if isinstance(value, int) and not INT64_MIN <= value < UINT64_END:
            raise bad_request("integers in extra arguments must fit in 64 bits", "extra_args")
