"""The object that a response is, before anything has been said."""

from __future__ import annotations

from typing import Any

import msgspec

from app.api.response_meta import Head
from app.protocol.responses import ResponsesRequest, TextConfig

Response = dict[str, Any]


def new_response(asked: ResponsesRequest, head: Head, most_tokens: int) -> Response:
    """The response to `asked`, in progress and without output; at most `most_tokens` will be generated.

    All keys are there already, in vLLM's order. RecursionError when tools are nested too deeply.
    """
    return {
        "id": head.id,
        "created_at": head.created,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "metadata": asked.metadata,
        "model": head.model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "temperature": _default(asked.temperature, 1.0),
        "tool_choice": _rendered(asked.tool_choice),
        "tools": _rendered(asked.tools),
        "top_p": _default(asked.top_p, 1.0),
        "background": bool(asked.background),
        "max_output_tokens": most_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "previous_response_id": asked.previous_response_id,
        "prompt": None,
        "reasoning": msgspec.to_builtins(asked.reasoning),
        "service_tier": asked.service_tier,
        "status": "in_progress",
        "text": _rendered(_text(asked.text)),
        "top_logprobs": asked.logprobs,
        "truncation": asked.truncation or "disabled",
        "usage": None,
        "user": asked.user,
        "presence_penalty": _default(asked.presence_penalty, 0.0),
        "frequency_penalty": _default(asked.frequency_penalty, 0.0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def usage(input_tokens: int, cached_tokens: int, output_tokens: int, reasoning_tokens: int) -> dict[str, Any]:
    """How tokens were used; what is told per turn belongs to tools that a server calls itself."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": input_tokens + output_tokens,
    }


def _rendered(value: Any) -> msgspec.Raw:
    """What a request may nest deeply, as JSON: a stream tells it three times."""
    return msgspec.Raw(msgspec.json.encode(value))


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


def _text(config: TextConfig | None) -> dict[str, Any] | None:
    if config is None:
        return None
    return {"format": config.format and config.format.told(), "verbosity": config.verbosity}
