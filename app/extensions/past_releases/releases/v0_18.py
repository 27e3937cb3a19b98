"""Changes of vLLM 0.18 to chats and completions."""

from typing import Any

from app.core.server.http.errors import ApiError, malformed
from app.core.versions.change import Answer, Change, Reading
from app.extensions.past_releases.paths import CHATS, INVOCATIONS, VALIDATED

EFFORTS = ("low", "medium", "high")
OF_PYTHON = "'<' not supported between instances of "
"""How an error begins that later versions report with 400."""


class TextError(ApiError):
    """An error that no rule foresees, as the server's framework answers it."""

    def __init__(self) -> None:
        super().__init__(500, "", "Internal Server Error")
        self.headers = {"Content-Type": "text/plain; charset=utf-8"}

    def body(self) -> bytes:
        """The text."""
        return self.message.encode()


def fail_as_text(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error without JSON, unless a stream reports it."""
    is_unforeseen = error.type == "InternalServerError" or error.message.startswith(OF_PYTHON)
    if not is_unforeseen or isinstance(request, dict) and request.get("stream"):
        return None
    return TextError()


def refuse_efforts(request: Any) -> None:
    """Refuses the efforts of thinking that came later.

    Raises:
        ApiError: 400.
    """
    effort = request.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise malformed("Input should be 'low', 'medium' or 'high'", "body.reasoning_effort")


CHANGES = (
    Change(
        area="Errors",
        before="An error that no rule foresees is the text `Internal Server Error`, with 500.",
        after="The error is JSON with the type `InternalServerError`.",
        forms=(Answer(paths=(*VALIDATED, "/collective_rpc"), failure=fail_as_text),),
    ),
    Change(
        area="Chat and completions",
        before="`reasoning_effort` is `low`, `medium` or `high`.",
        after="It may be `none`, which leaves the thoughts out.",
        forms=(Reading(paths=(*CHATS, INVOCATIONS), read=refuse_efforts),),
    ),
)
