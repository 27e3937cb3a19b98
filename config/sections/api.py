"""What the replies carry, and which routes there are."""

from dataclasses import dataclass

from config.fields import setting
from config.rules import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What the replies carry, and which routes there are."""

    enable_request_id_headers: bool = setting(False, help="Answer with an X-Request-Id header.")
    enable_prompt_tokens_details: bool = setting(False, help="Report cached prompt tokens in usage.")
    enable_force_include_usage: bool = setting(
        False, help="End every stream with its usage, whether the request asks for it or not."
    )
    enable_server_load_tracking: bool = setting(False, help="Count the running requests for GET /load.")
    max_logprobs: int = setting(
        20, help="Most log probabilities that a request may ask for; -1 is no limit.", rule=at_least(-1)
    )
    enable_scale_out: bool = setting(
        False, help="Serve render, inference/v1/generate and abort_requests, which answer 403 otherwise."
    )
    enable_sleep_mode: bool = setting(True, help="Let sleep and wake_up act; both also need server-dev-mode.")
    enable_responses_store: bool = setting(
        False,
        env=("VLLM_ENABLE_RESPONSES_API_STORE",),
        help="Keep answers of /v1/responses, so that they can be read, cancelled and continued.",
    )
