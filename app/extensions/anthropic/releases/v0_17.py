"""Changes of vLLM 0.17 to Messages."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import malformed
from app.core.versions.change import Answer, Change, Event, Reading
from app.core.versions.older_requests import objects_in

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
STOP = ("stop_reason", "stop_sequence")
THOUGHTS = ("thinking", "redacted_thinking")


def refuse_later(request: Any) -> None:
    """Refuses thoughts in the conversation, and the choice of no tool.

    Raises:
        ApiError: 400.
    """
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "none":
        raise malformed("Input should be 'auto', 'any' or 'tool'", "body.tool_choice.type")
    for message in objects_in(request.get("messages")):
        for block in objects_in(message.get("content")):
            if block.get("type") in THOUGHTS:
                raise malformed(
                    "Input should be 'text', 'image', 'tool_use' or 'tool_result'",
                    "body.messages.content.type",
                )


def narrow_start(event: Any, *, names: Sequence[str]) -> None:
    """Leaves out fields of the message that starts."""
    if event.get("type") == "message_start":
        for name in names:
            event["message"].pop(name, None)


def begin_with_text(answer: Any, request: JsonObject) -> None:
    """Replaces the thoughts of a message by its text, which may be empty."""
    blocks = answer.get("content")
    if isinstance(blocks, list):
        shown = [block for block in blocks if block["type"] not in THOUGHTS]
        if not shown or shown[0]["type"] != "text":
            shown.insert(0, {"type": "text", "text": ""})
        answer["content"] = shown


def without_thoughts(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that leaves out the events of thoughts in a stream."""
    thoughts: set[int] = set()

    def older(event: Event) -> Iterator[Event]:
        data: Any = event[1]
        block = data.get("content_block")
        if isinstance(block, dict) and block.get("type") in THOUGHTS:
            thoughts.add(data["index"])
        if data.get("index") in thoughts:
            return
        if "index" in data:
            data["index"] -= len(thoughts)
        yield event

    return older


CHANGES = (
    Change(
        area="Messages",
        before="Messages have no thoughts. They begin with a text, which may be empty.",
        after="Thoughts are blocks of their own. A message has a text if the model wrote one.",
        forms=(
            Answer(paths=PATHS[:1], whole=begin_with_text),
            Answer(paths=PATHS[:1], events=without_thoughts),
        ),
    ),
    Change(
        area="Messages",
        before="The message of `message_start` has no `stop_reason` and `stop_sequence`.",
        after="The message has them.",
        forms=(Answer(paths=PATHS[:1], edit=partial(narrow_start, names=STOP)),),
    ),
    Change(
        area="Messages",
        before="Blocks of thoughts, and the `tool_choice` `none`, are errors.",
        after="Both are accepted.",
        forms=(Reading(paths=PATHS, read=refuse_later),),
    ),
)
