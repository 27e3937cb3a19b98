"""Changes of vLLM 0.11.1 to chats and completions."""

from typing import Any

from app.core.server.http.errors import malformed
from app.core.versions.change import Answer, Change, Reading, Rules
from app.core.versions.paths import CHATS, GENERATING, INVOCATIONS

FAMILY_RULES = "app.core.versions.families.FamilyRules"


def refuse_lists(request: Any) -> None:
    """Refuses extra arguments that are lists.

    Raises:
        ApiError: 400.
    """
    arguments = request.get("vllm_xargs")
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if isinstance(value, list):
            raise malformed("Input should be a valid string", f"body.vllm_xargs.{name}.str")


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
        before="`vllm_xargs` has numbers and texts.",
        after="The values of `vllm_xargs` may be lists.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=refuse_lists),),
    ),
    Change(
        area="Metrics",
        before="`vllm:cache_config_info` has the label `swap_space_bytes`.",
        after="The label is gone.",
        forms=(Rules(FAMILY_RULES, {"has_swap_bytes": True}),),
        routes=("/metrics",),
    ),
    Change(
        area="Chat and completions",
        before="The thoughts of a message are `reasoning_content`.",
        after="The thoughts of a message are `reasoning`, too.",
        forms=(Answer(paths=CHATS, edit=rename_reasoning),),
        options=("reasoning-parser",),
    ),
)
