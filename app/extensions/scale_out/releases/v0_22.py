"""Changes of vLLM 0.22 to the routes of scale-out."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Answer, Change, Reading, Rules
from app.core.versions.older_requests import fields_of

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
GENERATE = "/inference/v1/generate"
MAX_TOKENS = 16
"""Default of vLLM's sampling parameters."""


def edit_generated(answer: Any) -> None:
    """Leaves out the experts of the tokens."""
    for choice in answer.get("choices", ()):
        choice.pop("routed_experts", None)


def limit_reply(request: Any) -> None:
    """Limits the reply to a request without a limit."""
    params = request.get("sampling_params")
    if isinstance(params, dict):
        params.setdefault("max_tokens", MAX_TOKENS)


def fail_without_prompt(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a request without tokens."""
    is_empty = isinstance(request, dict) and request.get("token_ids") == []
    if is_empty and fields_of(error) == {"token_ids"}:
        return bad_request("You must pass at least one prompt")
    return None


CHANGES = (
    Change(
        area="Scale-out",
        before="`/inference/v1/generate` generates 16 tokens without `max_tokens`. An empty list "
        "of tokens fails as a prompt.",
        after="The reply may fill the context, as in chats. The list does not fit the schema.",
        forms=(
            Reading(paths=(GENERATE,), read=limit_reply),
            Answer(paths=(GENERATE,), failure=fail_without_prompt),
        ),
    ),
    Change(
        area="Scale-out",
        before="Choices of `/inference/v1/generate` have no `routed_experts`.",
        after="Choices have `routed_experts`.",
        forms=(Answer(paths=(GENERATE,), edit=edit_generated),),
    ),
    Change(
        area="Scale-out",
        before="`/inference/v1/generate` ignores `X-data-parallel-rank`.",
        after="The header chooses the rank.",
        forms=(Rules(SCALE_OUT_RULES, {"follows_rank": False}),),
        routes=(GENERATE,),
    ),
)
