"""Changes of vLLM 0.24 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)
CACHE_FIELDS = ("cache_creation_input_tokens", "cache_read_input_tokens")


def edit_usage(answer: Any) -> None:
    """Counts the cached tokens among the others."""
    message = answer.get("message", answer)
    usage = message.get("usage")
    if isinstance(usage, dict):
        for name in CACHE_FIELDS:
            usage["input_tokens"] += usage.pop(name, 0)


def edit_start(event: Any) -> None:
    """Leaves out the fields that are the same in each message."""
    if event.get("type") == "message_start":
        del event["message"]["type"]
        del event["message"]["role"]


CHANGES = (
    Change(
        area="Messages",
        before="`usage` has no cached tokens; `input_tokens` counts them.",
        after="`usage` has `cache_creation_input_tokens` and `cache_read_input_tokens`.",
        forms=(Answer(paths=PATHS, edit=edit_usage),),
        options=("enable-prompt-tokens-details",),
    ),
    Change(
        area="Messages",
        before="The message of `message_start` has neither `type` nor `role`.",
        after="The message has both.",
        forms=(Answer(paths=PATHS, edit=edit_start),),
    ),
)
