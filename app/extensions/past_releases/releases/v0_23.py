"""What vLLM 0.23 changed in chats and completions."""

from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change
from app.extensions.past_releases.paths import VALIDATED

NAMED = (
    "stream_options",
    "prompt_logprobs",
    "top_logprobs",
    "logprobs",
    "prompt",
    "prompt_cache_key",
)
"""Fields that errors of rules named before."""
EMPTY_PROMPT = "Either prompt or prompt_embeds must be "
OF_VALUES = ("`thinking_token_budget` ", "Tool '", "tool_choice", "Invalid value for `tool_choice`")


def fail_without_param(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error of a rule that names no field."""
    is_rule = error.type == "Bad Request" and "'value_error'" in error.message
    if not is_rule or not error.param or error.param.startswith("body"):
        return None
    if error.param in NAMED and EMPTY_PROMPT not in error.message:
        return None
    message = error.message.replace(f" (parameter={error.param})", "")
    return ApiError(error.status, error.type, message)


CHANGES = (
    Change(
        area="Errors",
        before="Errors of rules about tools, constraints and prompts have a null `param`.",
        after="`param` is the field.",
        forms=(Answer(paths=VALIDATED, failure=fail_without_param),),
    ),
)
