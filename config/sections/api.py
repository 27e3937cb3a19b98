"""Settings of the API: content of replies, and optional routes."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import About, Json, Section, understood_by
from config.default_version import DEFAULT_VERSION
from config.untrusted import decode_untrusted, python_json

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Reasoning efforts of requests."""


def json_object(text: str) -> dict[str, object]:
    """Parses a JSON object.

    Raises:
        ValueError: The text is not a JSON object.
    """
    content = decode_untrusted(text, decoder=python_json)
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object")
    return content


def effort_map(text: str) -> dict[str, str]:
    """Parses an object of reasoning efforts to the texts that replace them.

    Raises:
        ValueError: The text is something else.
    """
    efforts: dict[str, str] = {}
    for effort, replacement in json_object(text).items():
        if effort not in EFFORTS:
            raise ValueError(f"the effort must be one of {', '.join(EFFORTS)}, not {effort!r}")
        if not isinstance(replacement, str):
            raise ValueError(f"the value of {effort} is not a string")
        efforts[effort] = replacement
    return efforts


class ApiSettings(Section, frozen=True, kw_only=True):
    """Content of replies, and optional routes."""

    vllm_version: str = DEFAULT_VERSION
    """vLLM version that the server plays: a release from 0.10 to 0.33, such as 0.27, 0.27.1, or
    nightly for the newest one. docs/versions.md lists the differences."""
    enable_request_id_headers: bool = False
    """Add an X-Request-Id header to responses."""
    enable_prompt_tokens_details: bool = False
    """Report the number of cached prompt tokens in the usage field."""
    enable_force_include_usage: bool = False
    """End every stream with usage data, even if the request does not ask for usage."""
    enable_server_load_tracking: bool = False
    """Track the number of running requests and report it at GET /load."""
    enable_per_request_metrics: bool = False
    """Include the timings of a request in its response. In streams, timings are sent along with the
    usage data."""
    return_tokens_as_token_ids: bool = False
    """Show tokens in log probabilities as token_id:N, unless the request specifies otherwise."""
    response_role: str = "assistant"
    """Message role in chat responses."""
    trust_request_chat_template: bool = False
    """Allow requests to specify a chat template, which is rendered in a process with time and
    memory limits."""
    default_chat_template_kwargs: Annotated[
        Json | None, understood_by(json_object, "must be a JSON object")
    ] = None
    """JSON object with arguments for chat templates. Arguments in a request take precedence."""
    reasoning_effort_map: Annotated[
        Json | None, understood_by(effort_map, "must be a JSON object of efforts to texts")
    ] = None
    """JSON object, such as {"medium": "low"}, that maps the reasoning efforts in requests to the
    efforts that chat templates receive. With the serve command, this option requires vLLM 0.33 or
    later."""
    exclude_tools_when_tool_choice_none: bool = False
    """Omit tools from the prompt if tool_choice is none."""
    enable_tokenizer_info_endpoint: bool = False
    """Serve GET /tokenizer_info."""
    sse_keep_alive_interval: Annotated[int, About(unit="s")] = 0
    """Time after which the server sends a comment in a chat or completion stream if no chunk is
    sent. The value 0 disables comments."""
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = "full"
    """Content of system_fingerprint in responses: full (version, sizes of parallel groups, and
    hash), hash (version and hash), custom (the value of fingerprint-value), or none (null)."""
    fingerprint_value: str | None = None
    """Fingerprint to return if fingerprint-mode is set to custom."""
    max_logprobs: Annotated[int, Meta(ge=-1)] = 20
    """Maximum number of log probabilities that a request can ask for per token. The value -1 means
    no limit."""
