"""What the API answers: which routes there are, what the replies carry, and errors on purpose."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from config.declaration import About, Json, Percent, Section, understood_by
from config.fault_rules import parse_fault_rules

FailureType = Literal[
    "rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found"
]
FAILURE_TYPES: tuple[str, ...] = get_args(FailureType)


class ApiSettings(Section, frozen=True, kw_only=True):
    """What the replies carry, and which routes there are."""

    enable_request_id_headers: Annotated[bool, About("Answer with an X-Request-Id header.")] = False
    enable_prompt_tokens_details: Annotated[bool, About("Report cached prompt tokens in usage.")] = False
    enable_force_include_usage: Annotated[
        bool, About("End every stream with its usage, whether the request asks for it or not.")
    ] = False
    enable_server_load_tracking: Annotated[bool, About("Count the running requests for GET /load.")] = False
    max_logprobs: Annotated[
        int, Meta(ge=-1), About("Most log probabilities that a request may ask for; -1 is no limit.")
    ] = 20
    disable_fastapi_docs: Annotated[bool, About("Serve no /openapi.json; there are no other pages.")] = False
    console: Annotated[
        bool,
        About(
            "Serve a page at /console that shows what the server does, and steers it; see docs/console.md."
        ),
    ] = False
    enable_scale_out: Annotated[
        bool, About("Serve render, inference/v1/generate and abort_requests, which answer 403 otherwise.")
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
