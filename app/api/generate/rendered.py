"""The sampling parameters of a render as vLLM dumps them: what has its default is left out."""

from __future__ import annotations

from typing import Any

import msgspec

from app.api.chat.tools import tool_calls_of
from app.api.forms import text_form
from app.engine.request import ToolCalls
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject
from app.protocol.options import StructuredOutputs
from app.protocol.validation.generation import ValidatedRequest
from app.protocol.validation.sampling import GenerationRequest
from app.schema import Schemas
from config.settings import ToolSettings

MAX_TOKENS = 16
"""vLLM's default, which even a client that asks for it does not see."""
DELTA, FINAL_ONLY = 1, 2
"""Kinds of output: of a stream, of a whole answer."""
BIAS = 100.0
LEAST_TEMPERATURE = 0.01
"""Of what is not greedy."""


def sampling_params(
    asked: ValidatedRequest[GenerationRequest],
    max_tokens: int,
    form: StructuredOutputs | None,
    extra_args: JsonObject | None,
) -> JsonObject:
    """All of them in vLLM's order. `form` is the form of the reply."""
    request, ids = asked.request, asked.request.logprob_token_ids or None
    tools = isinstance(request, ChatCompletionRequest) and request.tools and request.tool_choice != "none"
    return {
        **_but({"n": (asked.n, 1)}),
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "repetition_penalty": 1.0 if request.repetition_penalty is None else request.repetition_penalty,
        **_distribution(asked),
        **_but({"seed": (asked.seed, None)}),
        "stop": list(asked.stop),
        "stop_token_ids": list(dict.fromkeys(request.stop_token_ids or ())),
        **_but(
            {
                "ignore_eos": (request.ignore_eos, False),
                "max_tokens": (max_tokens, MAX_TOKENS),
                "min_tokens": (request.min_tokens, 0),
                "logprobs": (asked.logprobs, None),
                "prompt_logprobs": (asked.prompt_logprobs, None),
                "logprob_token_ids": (ids, None),
                "skip_special_tokens": (request.skip_special_tokens and not tools, True),
                "spaces_between_special_tokens": (request.spaces_between_special_tokens, True),
                "include_stop_str_in_output": (request.include_stop_str_in_output, False),
            }
        ),
        "output_kind": DELTA if request.stream else FINAL_ONLY,
        **_but({"stream_interval": (request.stream_interval, None)}),
        "skip_clone": True,
        **_but(
            {
                "output_text_buffer_length": (_held_back(asked), 0),
                "structured_outputs": (form and _form(form), None),
                "logit_bias": (request.logit_bias and _clamped(request.logit_bias), None),
                "allowed_token_ids": (request.allowed_token_ids, None),
                "extra_args": (extra_args, None),
            }
        ),
        "bad_words": list(dict.fromkeys(request.bad_words)),
        "skip_reading_prefix_cache": asked.prompt_logprobs is not None,
        **_but(
            {
                "thinking_token_budget": (request.thinking_token_budget, None),
                "repetition_detection": (request.repetition_detection, None),
                "routed_experts_prompt_start": (request.routed_experts_prompt_start, 0),
            }
        ),
    }


def _but(given: dict[str, tuple[object, object]]) -> JsonObject:
    """The values that are not their defaults."""
    return {name: value for name, (value, default) in given.items() if value != default}


def _distribution(asked: ValidatedRequest[GenerationRequest]) -> JsonObject:
    request = asked.request
    temperature = 1.0 if request.temperature is None else request.temperature
    temperature = max(temperature, LEAST_TEMPERATURE) if temperature else 0.0
    greedy = not temperature
    return {
        "temperature": temperature,
        **_but({"watermarking": (request.watermarking, None)}),
        "top_p": 1.0 if greedy or request.top_p is None else request.top_p,
        **_but({"top_k": (0 if greedy else request.top_k or 0, 0)}),
        "min_p": 0.0 if greedy else request.min_p or 0.0,
    }


def _held_back(asked: ValidatedRequest[GenerationRequest]) -> int:
    """Characters that may be the begin of a stop string."""
    if not asked.stop or asked.request.include_stop_str_in_output:
        return 0
    return max(map(len, asked.stop)) - 1


def _clamped(bias: dict[str, float]) -> dict[str, float]:
    return {str(int(token)): min(BIAS, max(-BIAS, value)) for token, value in bias.items()}


def _form(form: StructuredOutputs) -> JsonObject:
    fields: JsonObject = msgspec.to_builtins(form)
    return {**fields, "_backend": None, "_backend_was_auto": False}


def form_of(
    asked: ValidatedRequest[GenerationRequest], settings: ToolSettings, schemas: Schemas
) -> StructuredOutputs | None:
    """The form of the reply: that of the tool calls where some must be made. ApiError 400 as for a chat."""
    request = asked.request
    calls = None
    if isinstance(request, ChatCompletionRequest):
        calls = tool_calls_of(request, settings, schemas)
    if calls is None or not isinstance(request, ChatCompletionRequest):
        return asked.structured_outputs
    if settings.tool_call_parser not in ("", "hermes"):
        form = text_form(None, calls)
        return asked.structured_outputs if form is None else StructuredOutputs(json=form.json_schema)
    strict = {tool.function.name for tool in request.tools or () if tool.function.strict}
    if not calls.least and not strict:
        return asked.structured_outputs
    single = calls.named or request.parallel_tool_calls is False
    return StructuredOutputs(structural_tag=_hermes(calls, strict, single))


def _hermes(calls: ToolCalls, strict: set[str], single: bool) -> str:
    """A structural tag for calls as Hermes writes them; only strict tools keep to their schemas."""
    tags = [_tag(tool.name, tool.schema if tool.name in strict else True, gap)
            for tool in calls.tools for gap in ("\n", "")]  # fmt: skip
    form: dict[str, Any] = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
    if calls.least:
        form = {"type": "tags_with_separator", "tags": tags, "separator": ""}
    form |= {"at_least_one": calls.least > 0, "stop_after_first": single}
    return msgspec.json.encode({"type": "structural_tag", "format": form}).decode()


def _tag(name: str, schema: object, gap: str) -> JsonObject:
    return {
        "type": "tag",
        "begin": f'<tool_call>{gap}{{"name": "{name}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": f"}}{gap}</tool_call>",
    }


def extra_args_of(request: GenerationRequest) -> JsonObject:
    """What is passed on to the engine beside the sampling parameters."""
    names = ("kv_transfer_params", "ec_transfer_params")
    transfers = {name: given for name in names if (given := getattr(request, name))}
    return {**(request.vllm_xargs or {}), **transfers}
