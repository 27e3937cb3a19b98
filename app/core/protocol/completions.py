"""``POST /v1/completions``: the body and its answers, with keys in vLLM's order."""

from collections.abc import Sequence
from typing import ClassVar, cast

from msgspec import UNSET, Raw, Struct

from app.core.protocol import common, rules
from app.core.protocol.coercion import LaxFields
from app.core.protocol.convert import convert_value
from app.core.protocol.decoding import RawRequest
from app.core.protocol.options import GenerationFields, Natural
from app.core.server.http.errors import bad_request

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024

TokenIds = list[int]
Prompts = str | list[str] | TokenIds | list[TokenIds]


def convert_prompt(value: object) -> object:
    """Converts a prompt, or several prompts of one kind.

    Raises:
        ConversionError: The value is no prompt, or mixes texts and token ids.
    """
    if isinstance(value, list) and set(map(type, value)) == {str}:
        return value
    return convert_value(list[Natural] | list[list[Natural]] | str | list[str] | None, value)


class CompletionRequest(GenerationFields, kw_only=True):
    """The body of ``POST /v1/completions``, with every field of vLLM."""

    prompt: str | list[str | Natural | list[Natural]] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    """Never None after decoding: null becomes the default."""
    n: int = 1
    suffix: str | None = None

    prompt_embeds: str | list[str] | None = None
    add_special_tokens: bool = True

    lax_fields: ClassVar[LaxFields] = {"prompt": convert_prompt}

    def __post_init__(self) -> None:
        if self.max_tokens is None:
            self.max_tokens = DEFAULT_MAX_TOKENS
        super().__post_init__()

    def prompts(self) -> list[str] | list[TokenIds]:
        """Returns the prompts: either only texts, or only lists of token ids."""
        prompt = self.prompt
        if isinstance(prompt, str) or prompt and isinstance(prompt[0], int):
            return cast("list[str] | list[TokenIds]", [prompt])
        return cast("list[str] | list[TokenIds]", prompt or [])

    def check_rules(self: "CompletionRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        for name in ("prompt", "prompt_embeds"):
            value = getattr(self, name)
            if not isinstance(value, list) or len(value) <= MAX_PROMPTS:
                continue
            if not set(map(type, value)) <= {int, bool}:
                raise bad_request(
                    f"{name} can have at most {MAX_PROMPTS} items, got {len(value)}", name
                )
        if self.prompt in (None, "", []) and self.prompt_embeds in (None, []):
            raise bad_request(
                "Either prompt or prompt_embeds must be provided and non-empty.",
                None if self.prompt == [] else "prompt",
            )
        rules.check_stream_options(self.stream_options, self.stream)
        if self.use_beam_search:
            _check_beam_search(self)
        if self.logprob_token_ids and self.echo and self.max_tokens == 0:
            problem = "logprob_token_ids need tokens, echo with max_tokens=0 makes none"
            raise bad_request(problem, "logprob_token_ids")
        if self.logprob_token_ids and self.logprobs is None:
            raise bad_request("logprob_token_ids requires logprobs", "logprob_token_ids")
        rules.check_logprobs(self, "logprobs")
        rules.check_structured_outputs(self.structured_outputs, "structured_outputs")
        rules.check_shared_fields(self)


def _check_beam_search(request: CompletionRequest | RawRequest) -> None:
    if request.logprob_token_ids:
        raise bad_request("logprob_token_ids cannot be used with beam search", "logprob_token_ids")
    if request.echo and request.logprobs is not None:
        raise bad_request("echo with logprobs cannot be used with beam search", "echo")


class CompletionChoice(Struct):
    """One choice of a whole answer."""

    schemas: ClassVar[Sequence[str]] = ("CompletionResponseChoice",)
    index: int
    text: str | Raw
    logprobs: common.CompletionLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw | None
    prompt_logprobs: common.PromptLogprobs | Raw | None
    prompt_token_ids: Sequence[int] | Raw | None
    routed_experts: None = None
    weight_versions: common.WeightVersions = UNSET


class Completion(common.WholeAnswer, kw_only=True):
    """A whole answer."""

    schemas: ClassVar[Sequence[str]] = ("CompletionResponse",)
    object: str = "text_completion"
    choices: Sequence[CompletionChoice | Raw]
    kv_transfer_params: common.KVTransferParams | None = None
    ec_transfer_params: None = None
    metrics: common.PerRequestMetrics | None = None


class CompletionChunkChoice(Struct):
    """One choice of a chunk."""

    schemas: ClassVar[Sequence[str]] = ("CompletionResponseStreamChoice",)
    index: int | Raw
    text: str | Raw
    logprobs: common.CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    token_ids: Sequence[int] | None = None
    weight_versions: common.WeightVersions = None
