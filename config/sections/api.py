"""Settings of the API: routes, content of replies, and injected errors."""

import json
from typing import Annotated, Literal, get_args

from msgspec import Meta

from config.declaration import LIVE, About, Json, Percent, Section, understood_by
from config.fault_rules import parse_fault_rules

FailureType = Literal[
    "rate_limit",
    "invalid_api_key",
    "context_length",
    "server_error",
    "invalid_request",
    "model_not_found",
]
FAILURE_TYPES: tuple[str, ...] = get_args(FailureType)


def json_object(text: str) -> dict[str, object]:
    """Parses a JSON object.

    Raises:
        ValueError: The text is not a JSON object.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


class ApiSettings(Section, frozen=True, kw_only=True):
    """Content of replies, and optional routes."""

    enable_request_id_headers: bool = False
    """Answer with an X-Request-Id header."""
    enable_prompt_tokens_details: bool = False
    """Report cached prompt tokens in usage."""
    enable_force_include_usage: bool = False
    """End every stream with its usage, whether the request asks for it or not."""
    enable_server_load_tracking: bool = False
    """Count the running requests for GET /load."""
    enable_per_request_metrics: bool = False
    """Report a request's times in its answer: in a stream with its usage."""
    return_tokens_as_token_ids: bool = False
    """Name tokens token_id:N in log probabilities, where the request leaves it open."""
    response_role: str = "assistant"
    """Role of the message that answers a chat."""
    trust_request_chat_template: bool = False
    """Render conversations with the chat template of the request, where it has one; in a process
    with limits of time and memory."""
    default_chat_template_kwargs: Annotated[
        Json | None, understood_by(json_object, "must be a JSON object")
    ] = None
    """JSON object of arguments for chat templates, where the request does not give them."""
    exclude_tools_when_tool_choice_none: bool = False
    """Leave the tools out of the prompt where tool_choice is none."""
    enable_tokenizer_info_endpoint: bool = False
    """Serve GET /tokenizer_info."""
    sse_keep_alive_interval: Annotated[int, About(unit="s")] = 0
    """Send a comment to the client of a chat's or completion's stream after so long without a
    chunk; 0 sends none."""
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = "full"
    """system_fingerprint of answers: version, sizes of parallel groups and hash; without the sizes;
    fingerprint-value; null."""
    fingerprint_value: str | None = None
    """Fingerprint of mode custom."""
    max_logprobs: Annotated[int, Meta(ge=-1)] = 20
    """Most log probabilities that a request may ask for; -1 is no limit."""
    disable_fastapi_docs: bool = False
    """Serve no /openapi.json, /docs and /redoc."""
    console: bool = False
    """Serve a page at /console that shows what the server does, and steers it; see docs/console.md.
    """
    journal: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    """Most requests, in 16 MiB at most, that GET /admin/journal shows with their replies; 0 is
    none. Empty is 1000 with a console or a script, else none."""
    enable_scale_out: bool = False
    """Serve render, derender, inference/v1/generate and abort_requests, which are 403 otherwise."""
    tokens_only: bool = False
    """Serve the routes of enable-scale-out like an engine without a tokenizer:
    inference/v1/generate refuses stop strings and output_mode text."""
    enable_sleep_mode: bool = True
    """Let sleep and wake_up act; both also need server-dev-mode."""
    enable_responses_store: Annotated[bool, About(env=("VLLM_ENABLE_RESPONSES_API_STORE",))] = False
    """Keep answers of /v1/responses, so that they can be read, cancelled and continued."""


class FailureSettings(Section, frozen=True, kw_only=True):
    """Errors on purpose."""

    failure_injection_rate: Annotated[Percent, About(unit="%", live=True)] = 0
    """Share of generating requests that fail."""
    failure_types: Annotated[
        tuple[FailureType, ...],
        Meta(description=f"must only have {', '.join(FAILURE_TYPES)}"),
        LIVE,
    ] = ()
    """How they fail; every way when empty."""
    fault_rules: Annotated[
        Json | None,
        LIVE,
        understood_by(parse_fault_rules, "must be rules as they are described there"),
    ] = None
    """JSON list of scripted faults, each with the requests that it strikes; see docs/faults.md."""
