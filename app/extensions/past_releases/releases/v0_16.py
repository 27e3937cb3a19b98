"""Changes of vLLM 0.16 to chats."""

from typing import Any

from app.core.versions.change import Absent, Answer, Change
from app.extensions.past_releases.paths import CHATS


def copy_reasoning(answer: Any) -> None:
    """Repeats the thoughts under their former name."""
    for choice in answer.get("choices", ()):
        for name in ("message", "delta"):
            part = choice.get(name)
            if part is not None and "reasoning" in part:
                part["reasoning_content"] = part["reasoning"]


CHANGES = (
    Change(
        area="Chat and completions",
        before="Messages and deltas repeat `reasoning` as `reasoning_content`.",
        after="`reasoning_content` is gone.",
        forms=(
            Absent(kept=("ChatMessage.reasoning", "DeltaMessage.reasoning")),
            Answer(paths=CHATS, edit=copy_reasoning),
        ),
        options=("reasoning-parser",),
    ),
)
