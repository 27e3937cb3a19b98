"""Changes of vLLM 0.12 to responses."""

from typing import Any

from app.core.server.http.errors import bad_request, internal
from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import objects_in
from app.extensions.responses.releases.v0_21 import is_read, is_thought

PATHS = ("/v1/responses",)


def refuse_answers(request: Any) -> None:
    """Refuses messages of the assistant with parts of the type `output_text`.

    Raises:
        ApiError: 400.
    """
    for item in objects_in(request.get("input")):
        for part in objects_in(item.get("content")):
            if part.get("type") == "output_text":
                raise bad_request("Unknown part type: output_text None")


def is_object(thought: Any) -> bool:
    """Returns whether a thought has the required fields, and is read as an object."""
    has_fields = isinstance(thought.get("id"), str) and isinstance(thought.get("summary"), list)
    return has_fields and is_read(thought)


def fail_at_objects(request: Any) -> None:
    """Fails at thoughts that are read as objects.

    Raises:
        ApiError: 500.
    """
    for item in filter(is_thought, objects_in(request.get("input"))):
        if is_object(item):
            raise internal("'ResponseReasoningItem' object has no attribute 'get'")


CHANGES = (
    Change(
        area="Responses",
        before="All thoughts in the input fail with 500.",
        after="Thoughts with a text are part of the prompt.",
        forms=(Reading(paths=PATHS, read=fail_at_objects),),
    ),
    Change(
        area="Responses",
        before="A part of the type `output_text` in the input is an error.",
        after="The input may have the messages of earlier responses.",
        forms=(Reading(paths=PATHS, read=refuse_answers),),
    ),
)
