"""Changes of vLLM 0.13 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)


def edit_start(event: Any) -> None:
    """Leaves out the tokens of the prompt."""
    if event.get("type") == "message_start":
        event["message"].pop("usage", None)


CHANGES = (
    Change(
        area="Messages",
        before="The message of `message_start` has no `usage`.",
        after="The message has `usage`.",
        forms=(Answer(paths=PATHS, edit=edit_start),),
    ),
)
