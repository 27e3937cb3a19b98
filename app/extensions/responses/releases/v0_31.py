"""Changes of vLLM 0.31 to responses."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/responses", "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel")


def edit_usage(answer: Any) -> None:
    """Leaves out the tokens that were written to a cache."""
    response = answer.get("response", answer)
    usage = response.get("usage")
    if isinstance(usage, dict):
        usage["input_tokens_details"].pop("cache_write_tokens", None)


CHANGES = (
    Change(
        area="Responses",
        before="`usage.input_tokens_details` has no `cache_write_tokens`.",
        after="`usage.input_tokens_details` has `cache_write_tokens`.",
        forms=(Answer(paths=PATHS, edit=edit_usage),),
    ),
)
