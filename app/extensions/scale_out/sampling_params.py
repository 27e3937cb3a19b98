"""Sampling parameters of rendered requests, as vLLM dumps them."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import fields

from app.core.api.chat.tools import tool_calls_of
from app.core.api.sampling import text_form
from app.core.engine.constraints import Constraints
from app.core.engine.request import ToolCalls
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import StructuredOutputs
from app.core.protocol.sampling import floored_temperature
from app.core.protocol.validation import GenerationRequest, ValidatedRequest
from app.extensions.scale_out.protocol import SamplingParams
from config.settings import ToolSettings

OUTPUT_KIND_DELTA = 1
OUTPUT_KIND_FINAL_ONLY = 2
MAX_BIAS = 100.0
ALWAYS_SHOWN = frozenset(
    [
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "temperature",
        "top_p",
        "min_p",
        "stop",
        "stop_token_ids",
        "output_kind",
        "skip_clone",
        "bad_words",
        "skip_reading_prefix_cache",
    ]
)
DEFAULTS: Mapping[str, object] = {
    **{field.name: field.default for field in fields(SamplingParams)},
    "max_tokens": 16,
}
"""Sampling parameters in vLLM's order, with defaults.

Defaults are left out even where a client sets them.
"""


def sampling_params(
    validated: ValidatedRequest[GenerationRequest],
    max_tokens: int,
    structured_outputs: StructuredOutputs | None,
    extra_args: JsonObject | None,
) -> JsonObject:
    """Returns the sampling parameters of a request."""
    request = validated.request
    has_tools = (
        isinstance(request, ChatCompletionRequest)
        and request.tools
        and request.tool_choice != "none"
    )
    held_back = 0
    if validated.stop and not request.include_stop_str_in_output:
        held_back = max(map(len, validated.stop)) - 1
    form = structured_outputs and {
        **msgspec.to_builtins(structured_outputs),
        "_backend": None,
        "_backend_was_auto": False,
    }
    bias = request.logit_bias
    computed: JsonObject = {
        "n": validated.n,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "repetition_penalty": 1.0,
        **_randomness(request),
        "seed": validated.seed,
        "stop": list(validated.stop),
        "stop_token_ids": list(dict.fromkeys(request.stop_token_ids or ())),
        "max_tokens": max_tokens,
        "logprobs": validated.logprobs,
        "prompt_logprobs": validated.prompt_logprobs,
        "logprob_token_ids": request.logprob_token_ids or None,
        "skip_special_tokens": request.skip_special_tokens is not False and not has_tools,
        "output_kind": OUTPUT_KIND_DELTA if request.stream else OUTPUT_KIND_FINAL_ONLY,
        "skip_clone": True,
        "output_text_buffer_length": held_back,
        "structured_outputs": form,
        "logit_bias": bias
        and {str(int(token)): min(MAX_BIAS, max(-MAX_BIAS, bias[token])) for token in bias},
        "extra_args": extra_args,
        "bad_words": list(dict.fromkeys(request.bad_words)),
        "skip_reading_prefix_cache": validated.prompt_logprobs is not None,
    }
    if request.repetition_penalty is not None:
        computed["repetition_penalty"] = request.repetition_penalty
    params: JsonObject = {}
    for name, default in DEFAULTS.items():
        value = computed[name] if name in computed else getattr(request, name, default)
        if name in ALWAYS_SHOWN or value != default:
            params[name] = value
    return params


def _randomness(request: GenerationRequest) -> JsonObject:
    """Returns the parameters that greedy sampling resets."""
    if request.temperature == 0:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    temperature = 1.0 if request.temperature is None else request.temperature
    return {
        "temperature": floored_temperature(temperature),
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "top_k": request.top_k or 0,
        "min_p": request.min_p or 0.0,
    }


def rendered_form(
    validated: ValidatedRequest[GenerationRequest], settings: ToolSettings, schemas: Constraints
) -> StructuredOutputs | None:
    """Returns the constraint on the reply; required tool calls have their own.

    Raises:
        ApiError: 400 as for a chat.
    """
    request = validated.request
    if not isinstance(request, ChatCompletionRequest):
        return validated.structured_outputs
    calls = tool_calls_of(request, settings, schemas)
    if calls is None:
        return validated.structured_outputs
    if settings.tool_call_parser not in ("", "hermes"):
        form = text_form(None, calls)
        if form is None:
            return validated.structured_outputs
        return StructuredOutputs(json=form.json_schema)
    strict = {tool.function.name for tool in request.tools or () if tool.function.strict}
    if not calls.min_calls and not strict:
        return validated.structured_outputs
    is_single = calls.named or request.parallel_tool_calls is False
    return StructuredOutputs(structural_tag=_hermes_tag(calls, strict, is_single))


def _hermes_tag(calls: ToolCalls, strict: set[str], is_single: bool) -> str:
    """Returns a structural tag for calls in Hermes form; schemas bind strict tools only."""
    tags: list[JsonObject] = [
        {
            "type": "tag",
            "begin": f'<tool_call>{gap}{{"name": "{tool.name}", "arguments": ',
            "content": {
                "type": "json_schema",
                "json_schema": tool.schema if tool.name in strict else True,
            },
            "end": f"}}{gap}</tool_call>",
        }
        for tool in calls.tools
        for gap in ("\n", "")
    ]
    tag_format: JsonObject = {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": tags,
    }
    if calls.min_calls:
        tag_format = {"type": "tags_with_separator", "tags": tags, "separator": ""}
    tag_format["at_least_one"] = calls.min_calls > 0
    tag_format["stop_after_first"] = is_single
    return msgspec.json.encode({"type": "structural_tag", "format": tag_format}).decode()
