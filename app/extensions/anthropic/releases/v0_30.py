"""Changes of vLLM 0.30 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)


def edit_end(event: Any) -> None:
    """Leaves out a null for the string that ended the message."""
    if event.get("type") == "message_delta" and event["delta"].get("stop_sequence") is None:
        event["delta"].pop("stop_sequence", None)


CHANGES = (
    Change(
        area="Messages",
        before="`message_delta` of a stream has no `stop_sequence` if no string ended the message.",
        after="`message_delta` always has `stop_sequence`, which may be null.",
        forms=(Answer(paths=PATHS, edit=edit_end),),
    ),
)
