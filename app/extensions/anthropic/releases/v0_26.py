"""Changes of vLLM 0.26 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)
CREATED = "cache_creation_input_tokens"


def edit_usage(answer: Any) -> None:
    """Counts the tokens that the cache now has among the others."""
    message = answer.get("message", answer)
    usage = message.get("usage")
    if isinstance(usage, dict) and CREATED in usage:
        usage["input_tokens"] += usage[CREATED]
        usage[CREATED] = 0


CHANGES = (
    Change(
        area="Messages",
        before="`cache_creation_input_tokens` is 0; `input_tokens` counts these tokens.",
        after="`cache_creation_input_tokens` counts the tokens that the cache did not have.",
        forms=(Answer(paths=PATHS, edit=edit_usage),),
        options=("enable-prompt-tokens-details",),
    ),
)
