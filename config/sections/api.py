"""Settings of the API: routes, content of replies, and injected errors."""

import json
from typing import Annotated, Literal, get_args

from msgspec import Meta

from config.declaration import About, Json, Percent, Section, understood_by
from config.fault_rules import parse_fault_rules

FailureType = Literal[
    "rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found"
]
FAILURE_TYPES: tuple[str, ...] = get_args(FailureType)


def json_object(text: str) -> dict[str, object]:
    """Parses a JSON object. ValueError for any other text."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


class ApiSettings(Section, frozen=True, kw_only=True):
    """What the replies carry, and which routes there are."""

    enable_request_id_headers: Annotated[bool, About("Answer with an X-Request-Id header.")] = False
    enable_prompt_tokens_details: Annotated[bool, About("Report cached prompt tokens in usage.")] = False
    enable_force_include_usage: Annotated[
        bool, About("End every stream with its usage, whether the request asks for it or not.")
    ] = False
    enable_server_load_tracking: Annotated[bool, About("Count the running requests for GET /load.")] = False
    enable_per_request_metrics: Annotated[
        bool, About("Report a request's times in its answer: in a stream with its usage.")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, About("Name tokens token_id:N in log probabilities, where the request does not say.")
    ] = False
    response_role: Annotated[str, About("Role of the message that answers a chat.")] = "assistant"
    trust_request_chat_template: Annotated[
        bool, About("Render conversations with the chat template of the request, where it has one.")
    ] = False
    default_chat_template_kwargs: Annotated[
        Json | None,
        About("JSON object of arguments for chat templates, where the request does not give them."),
        understood_by(json_object, "must be a JSON object"),
    ] = None
    exclude_tools_when_tool_choice_none: Annotated[
        bool, About("Leave the tools out of the prompt where tool_choice is none.")
    ] = False
    enable_tokenizer_info_endpoint: Annotated[bool, About("Serve GET /tokenizer_info.")] = False
    sse_keep_alive_interval: Annotated[
        int,
        About(
            "Send a comment to the client of a chat's or completion's stream after so long without a chunk; "
            "0 sends none.",
            unit="s",
        ),
    ] = 0
    fingerprint_mode: Annotated[
        Literal["full", "hash", "custom", "none"],
        About(
            "system_fingerprint of answers: version, sizes of parallel groups and hash; without the sizes; "
            "fingerprint-value; null."
        ),
    ] = "full"
    fingerprint_value: Annotated[str | None, About("Fingerprint of mode custom.")] = None
    max_logprobs: Annotated[
        int, Meta(ge=-1), About("Most log probabilities that a request may ask for; -1 is no limit.")
    ] = 20
    disable_fastapi_docs: Annotated[bool, About("Serve no /openapi.json, /docs and /redoc.")] = False
    console: Annotated[
        bool,
        About(
            "Serve a page at /console that shows what the server does, and steers it; see docs/console.md."
        ),
    ] = False
    enable_scale_out: Annotated[
        bool,
        About("Serve render, derender, inference/v1/generate and abort_requests, which are 403 otherwise."),
    ] = False
    enable_sleep_mode: Annotated[
        bool, About("Let sleep and wake_up act; both also need server-dev-mode.")
    ] = True
    enable_responses_store: Annotated[
        bool,
        About(
            "Keep answers of /v1/responses, so that they can be read, cancelled and continued.",
            env=("VLLM_ENABLE_RESPONSES_API_STORE",),
        ),
    ] = False


class FailureSettings(Section, frozen=True, kw_only=True):
    """Errors on purpose."""

    failure_injection_rate: Annotated[
        Percent, About("Share of generating requests that fail.", unit="%", live=True)
    ] = 0
    failure_types: Annotated[
        tuple[FailureType, ...],
        Meta(description=f"must only have {', '.join(FAILURE_TYPES)}"),
        About("How they fail; every way when empty.", live=True),
    ] = ()
    fault_rules: Annotated[
        Json | None,
        About(
            "JSON list of scripted faults, each with the requests that it strikes; see docs/faults.md.",
            live=True,
        ),
        understood_by(parse_fault_rules, "must be rules as they are described there"),
    ] = None
