"""Changes of vLLM 0.13 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)
LATER = ("stop_reason", "stop_sequence", "usage")


def edit_start(event: Any) -> None:
    """Leaves out the fields that have no values yet."""
    if event.get("type") == "message_start":
        for name in LATER:
            event["message"].pop(name, None)


CHANGES = (
    Change(
        area="Messages",
        before="The message of `message_start` has no `usage`, `stop_reason` and `stop_sequence`.",
        after="The message has them.",
        forms=(Answer(paths=PATHS, edit=edit_start),),
    ),
)
