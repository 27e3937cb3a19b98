"""Sampling parameters of rendered requests, as vLLM dumps them."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict, fields

from app.core.api.chat.tools import tool_calls_of
from app.core.api.sampling import text_form
from app.core.base.clock.pause import paced
from app.core.engine.constraints import Constraints
from app.core.engine.request import ToolCalls
from app.core.engine.sampling import SamplingDefaults
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import StructuredOutputs
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
SPECIAL_TOKEN_PARSERS = frozenset(
    [
        "deepseek_v4",
        "deepseek_v41",
        "gemma4",
        "glm45",
        "glm47",
        "granite_thinking_parser",
        "inkling",
        "kimi_k2",
        "kimi_k3",
        "ling3",
        "mimo",
        "minicpmv",
        "minimax_m2",
        "mistral",
        "muse_glimmer",
        "nemotron_v3",
        "plamo3",
        "qwen3",
        "seed_oss",
        "step3p5",
    ]
)
"""Reasoning parsers that read special tokens of a chat, so that these are not skipped."""
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
    reasoning_parser: str,
) -> JsonObject:
    """Returns the sampling parameters of a request."""
    request = validated.request
    is_chat = isinstance(request, ChatCompletionRequest)
    has_tools = (
        isinstance(request, ChatCompletionRequest)
        and request.tools
        and request.tool_choice != "none"
    )
    reads_special = has_tools or is_chat and reasoning_parser in SPECIAL_TOKEN_PARSERS
    sampling = validated.sampling(SamplingDefaults())
    held_back = 0
    if sampling.stop and not sampling.include_stop_str_in_output:
        held_back = max(map(len, sampling.stop)) - 1
    form = structured_outputs and {
        **msgspec.to_builtins(structured_outputs),
        "_backend": None,
        "_backend_was_auto": False,
    }
    bias = {
        str(token): min(MAX_BIAS, max(-MAX_BIAS, value))
        for token, value in paced(sampling.logit_bias.items())
    }
    computed: JsonObject = {
        **asdict(sampling),
        "n": validated.n,
        "stop": list(sampling.stop),
        "stop_token_ids": list(dict.fromkeys(request.stop_token_ids or ())),
        "max_tokens": max_tokens,
        "logprob_token_ids": list(sampling.logprob_token_ids) or None,
        "skip_special_tokens": sampling.skip_special_tokens and not reads_special,
        "output_kind": OUTPUT_KIND_DELTA if request.stream else OUTPUT_KIND_FINAL_ONLY,
        "skip_clone": True,
        "output_text_buffer_length": held_back,
        "structured_outputs": form,
        "logit_bias": bias or None,
        "extra_args": extra_args,
        "bad_words": list(dict.fromkeys(sampling.bad_words)),
        "skip_reading_prefix_cache": sampling.prompt_logprobs is not None,
    }
    params: JsonObject = {}
    for name, default in DEFAULTS.items():
        value = computed[name] if name in computed else getattr(request, name, default)
        if name in ALWAYS_SHOWN or value != default:
            params[name] = value
    return params


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
