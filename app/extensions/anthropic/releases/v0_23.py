"""Changes of vLLM 0.23 to Messages."""

from typing import Any

from app.core.server.http.errors import invalid_field
from app.core.versions.change import Change, Reading

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
ROLES = "'user' or 'assistant'"


def refuse_system_role(request: Any) -> None:
    """Refuses messages of the system.

    Raises:
        ApiError: 400.
    """
    messages = request.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict) and message.get("role") == "system":
            raise invalid_field(
                "literal_error",
                f"body.messages.{index}.role",
                f"Input should be {ROLES}",
                "system",
                {"expected": ROLES},
            )


CHANGES = (
    Change(
        area="Messages",
        before="A message with the role `system` is an error.",
        after="The conversation may contain messages with the role `system`.",
        forms=(Reading(paths=PATHS, read=refuse_system_role),),
    ),
)
