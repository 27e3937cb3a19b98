"""Changes of vLLM 0.21 to responses."""

from typing import Any

from app.core.server.http.errors import internal, malformed
from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import objects_in

PATHS = ("/v1/responses",)
STATUSES = ("in_progress", "completed", "incomplete")


def is_thought(item: Any) -> bool:
    """Returns whether an item of the input is a thought."""
    return bool(item.get("type") == "reasoning")


def is_read(item: Any) -> bool:
    """Returns whether vLLM has read a thought that fits the schema as an object.

    Pydantic's union reads every other thought as a dictionary, which has no role. It prefers the
    object for a valid thought with a text, or with a null that the dictionary does not allow.
    """
    parts = [*objects_in(item["summary"]), *objects_in(item.get("content"))]
    kinds = {part.get("type") for part in parts}
    encrypted = item.get("encrypted_content")
    is_valid = (
        kinds <= {"summary_text", "reasoning_text"}
        and all(isinstance(part.get("text"), str) for part in parts)
        and item.get("status") in (None, *STATUSES)
        and (encrypted is None or isinstance(encrypted, str))
    )
    has_null = any(name in item and item[name] is None for name in ("content", "status"))
    return is_valid and (bool(parts) or has_null)


def fail_at_thoughts(request: Any) -> None:
    """Fails at thoughts that are read as dictionaries.

    Raises:
        ApiError: 400 for one without an id or a summary, else 500.
    """
    for item in filter(is_thought, objects_in(request.get("input"))):
        for name, kind in (("id", str), ("summary", list)):
            if not isinstance(item.get(name), kind):
                raise malformed("Field required", f"body.input.{name}")
        if not is_read(item):
            raise internal("'role'")


CHANGES = (
    Change(
        area="Responses",
        before="Thoughts in the input need an `id`. Those without a text fail with 500, unless "
        "`content` or `status` is null.",
        after="All thoughts are part of the prompt. With `encrypted_content`, they fail with 400.",
        forms=(Reading(paths=PATHS, read=fail_at_thoughts),),
    ),
)
