"""Changes of vLLM 0.11 to chats and completions."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer, Change, Event, Reading
from app.extensions.past_releases.paths import CHATS, COMPLETIONS, GENERATING, INVOCATIONS


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


def ask_for_ids(request: Any) -> None:
    """Asks for the tokens of the prompt in a stream."""
    if request.get("stream"):
        request["return_token_ids"] = True


def with_prompt_ids(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that removes the tokens of the reply, unless they were asked for."""
    has_reply_ids = bool(request.get("return_token_ids"))

    def older(event: Event) -> Iterator[Event]:
        for choice in () if has_reply_ids else event[1].get("choices", ()):
            choice["token_ids"] = None
        yield event

    return older


CHANGES = (
    Change(
        area="Chat and completions",
        before="The first chunk of a completion always has `prompt_token_ids`.",
        after="Only `return_token_ids` asks for them.",
        forms=(
            Reading(paths=COMPLETIONS, read=ask_for_ids),
            Answer(paths=COMPLETIONS, events=with_prompt_ids),
        ),
    ),
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
