"""Changes of vLLM 0.16 to chats, and to routes of other tasks."""

from typing import Any

from app.core.versions.change import Absent, Answer, Change, Rules
from app.extensions.past_releases.paths import CHATS

TASK_RULES = "app.extensions.past_releases.other_tasks.TaskRules"


def copy_reasoning(answer: Any) -> None:
    """Repeats the thoughts under their former name, which is null without thoughts."""
    for choice in answer.get("choices", ()):
        for name in ("message", "delta"):
            part = choice.get(name)
            if part is not None:
                part["reasoning_content"] = part.get("reasoning")


CHANGES = (
    Change(
        area="Chat and completions",
        before="Messages and deltas repeat `reasoning` as `reasoning_content`, which is null in "
        "other deltas.",
        after="`reasoning_content` is gone.",
        forms=(
            Absent(kept=("ChatMessage.reasoning", "DeltaMessage.reasoning")),
            Answer(paths=CHATS, edit=copy_reasoning),
        ),
        options=("reasoning-parser",),
    ),
    Change(
        area="Pooling",
        before="A route of another task than the model's answers 200 with an error.",
        after="The server does not have the route.",
        forms=(Rules(TASK_RULES, {"has_other_tasks": True}),),
        routes=("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"),
    ),
)
