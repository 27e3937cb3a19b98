"""Fields, nested options, number ranges and tools that chats and text completions share."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from app.core.engine.sampling import RepetitionDetection
from app.core.protocol.coercion import JsonObject
from app.core.protocol.decoding import Request
from app.core.server.http.errors import bad_request

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MAX_STOP_STRINGS = 4

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Share = Annotated[float, Meta(ge=0, le=1)]
Natural = Annotated[int, Meta(ge=0)]
Truncation = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
StopStrings = str | Annotated[list[str], Meta(max_length=MAX_STOP_STRINGS)] | None
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ExtraArg = str | int | float | list[str | int | float]

FLAT_TRANSFER = (
    "do_remote_decode",
    "do_remote_prefill",
    "remote_block_ids",
    "remote_engine_id",
    "remote_host",
    "remote_port",
)
"""Fields of `kv_transfer_params` that llm-d's simulator took at the top level, up to version 0.5.
"""


class StreamOptions(Struct, kw_only=True):
    """Options for the usage in a stream: in a last event, and in each event."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(Struct, kw_only=True):
    """The ``json_schema`` of a response format; ``schema`` on the wire is `json_schema` here."""

    name: str
    description: str | None = None
    json_schema: JsonObject | None = msgspec.field(default=None, name="schema")
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """The required form of the answer; the last three fields are only for ``structural_tag``."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    format: object = None
    structures: object = None
    triggers: object = None


class StructuredOutputs(Struct, kw_only=True):
    """vLLM's own output constraints: exactly one of the first five and `structural_tag`."""

    json: str | JsonObject | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        constraints = (self.json, self.regex, self.choice, self.grammar, self.json_object)
        count = sum(constraint is not None for constraint in (*constraints, self.structural_tag))
        if count != 1:
            rule = "must use one kind of structured outputs constraint but none are"
            if count:
                rule = "can only use one kind of structured outputs constraint but multiple are"
            raise bad_request(f"You {rule} specified: {asdict(self)!s:.9000}")


class CheckedRepetitionDetection(RepetitionDetection, kw_only=True):
    """Conditions for ending a reply that repeats itself, with vLLM's rules."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise bad_request(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= "
                "max_pattern_size. Set both to 0 to disable repetitive pattern detection."
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise bad_request(
                "min_count must be >= 2 to detect repetitive patterns in engine output. If you do "
                "not wish to detect repetitive patterns, set max_pattern_size to 0."
            )


class FunctionDefinition(Struct, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(Struct, kw_only=True):
    """A tool for the model."""

    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None


class NamedFunction(Struct, kw_only=True):
    """The function that a tool choice requires."""

    name: str


class AllowedTools(Struct, kw_only=True):
    """The tools that a tool choice allows; `mode` decides whether one must be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[Tool] = []


class NamedToolChoice(Struct, kw_only=True):
    """``tool_choice`` as an object: a required function, or the allowed tools."""

    function: NamedFunction | None = None
    type: Literal["function", "allowed_tools"] = "function"
    allowed_tools: AllowedTools | None = None

    def names(self) -> list[str]:
        """Returns the names of the allowed functions."""
        if self.type == "allowed_tools" and self.allowed_tools is not None:
            return [tool.function.name for tool in self.allowed_tools.tools]
        return [self.function.name] if self.function is not None else []


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | None


class SharedFields(Request, kw_only=True):
    """Common fields of all requests for generation, also of Messages.

    None stands for the server's default.
    """

    model: str | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    watermarking: bool | None = None
    priority: Int64 = 0
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, ExtraArg] | None = None


class SamplingFields(SharedFields, kw_only=True):
    """Common fields of chats, text completions and responses."""

    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: StopStrings = []
    stop_token_ids: list[int] | None = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None
    request_id: str = ""
    """Empty if the client sends none: vLLM then draws a random id."""
    session_id: str | None = None


class GenerationFields(SamplingFields, kw_only=True):
    """Common fields of chats and text completions.

    The first six fields are not in vLLM. They set fields of `kv_transfer_params`, and may have any
    type.
    """

    do_remote_decode: object = None
    do_remote_prefill: object = None
    remote_block_ids: object = None
    remote_engine_id: object = None
    remote_host: object = None
    remote_port: object = None

    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    thinking_token_budget: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    min_tokens: int = 0
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: Natural = 0
    return_token_offsets: bool | None = False
    cache_hit_threshold: Share | None = None
    """Not in vLLM: the reply is empty if a smaller share of the prompt is cached."""
    repetition_detection: CheckedRepetitionDetection | None = None
    stream_interval: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        """Reads the values that mean none, and the older form of transfer parameters."""
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None
        if self.do_remote_decode is not None or self.do_remote_prefill is not None:
            fields = {name: getattr(self, name) for name in FLAT_TRANSFER}
            flat = {name: value for name, value in fields.items() if value is not None}
            self.kv_transfer_params = flat | (self.kv_transfer_params or {})
