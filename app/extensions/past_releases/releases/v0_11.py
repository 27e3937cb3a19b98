"""Changes of vLLM 0.11 to chats and completions."""

from typing import Any

from app.core.versions.change import Answer, Change, Reading
from app.extensions.past_releases.paths import CHATS, GENERATING, INVOCATIONS


def ignore_structured_outputs(request: Any) -> None:
    """Removes the field that older versions do not know."""
    request.pop("structured_outputs", None)


def rename_reasoning(answer: Any) -> None:
    """Removes the later name of the thoughts, which `reasoning_content` repeats."""
    for choice in answer.get("choices", ()):
        for name in ("message", "delta"):
            part = choice.get(name)
            if part is not None:
                part.pop("reasoning", None)
                if name == "delta" and part.get("reasoning_content") is None:
                    part.pop("reasoning_content", None)


CHANGES = (
    Change(
        area="Chat and completions",
        before="`structured_outputs` is ignored.",
        after="`structured_outputs` constrains the reply, as the `guided_` fields do.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=ignore_structured_outputs),),
    ),
    Change(
        area="Chat and completions",
        before="The thoughts of a message are `reasoning_content`.",
        after="The thoughts of a message are `reasoning`, too.",
        forms=(Answer(paths=CHATS, edit=rename_reasoning),),
        options=("reasoning-parser",),
    ),
)
