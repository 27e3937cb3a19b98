"""Changes of vLLM 0.30 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)


def edit_end(event: Any) -> None:
    """Leaves out the string that ended the message."""
    if event.get("type") == "message_delta":
        event["delta"].pop("stop_sequence", None)


CHANGES = (
    Change(
        area="Messages",
        before="`message_delta` of a stream has no `stop_sequence`.",
        after="`message_delta` has `stop_sequence`, null if no string ended the message.",
        forms=(Answer(paths=PATHS, edit=edit_end),),
    ),
)
