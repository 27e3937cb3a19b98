"""Changes of vLLM 0.29 to Messages."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages",)


def edit_end(answer: Any) -> None:
    """Ends a message that a string has stopped like any other."""
    end = answer.get("delta", answer)
    if end.get("stop_reason") == "stop_sequence":
        end["stop_reason"] = "end_turn"
        end.pop("stop_sequence", None)


CHANGES = (
    Change(
        area="Messages",
        before="A message that a stop sequence ends has the `stop_reason` `end_turn`.",
        after="The message has the `stop_reason` `stop_sequence`, and the sequence.",
        forms=(Answer(paths=PATHS, edit=edit_end),),
    ),
)
