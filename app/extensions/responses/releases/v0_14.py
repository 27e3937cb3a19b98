"""Changes of vLLM 0.14 to responses."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Answer, Change, Reading

PATHS = ("/v1/responses",)


def refuse_messages(request: Any) -> None:
    """Refuses to return the messages of models other than gpt-oss.

    Raises:
        ApiError: 400.
    """
    if request.get("enable_response_messages") and not request.get("stream"):
        raise bad_request("enable_response_messages is currently only supported for gpt-oss")


def complete(answer: Any) -> None:
    """Takes a reply that the limit has cut for a whole one, also in an event of a stream."""
    response = answer.get("response", answer)
    if response.get("status") == "incomplete":
        response["status"] = "completed"
        if "incomplete_details" in response:
            response["incomplete_details"] = None


CHANGES = (
    Change(
        area="Responses",
        before="`enable_response_messages` is an error.",
        after="Responses have the messages of the request and of the reply.",
        forms=(Reading(paths=PATHS, read=refuse_messages),),
    ),
    Change(
        area="Responses",
        before="A response that reaches its token limit has the status `completed`.",
        after="It has the status `incomplete`, and `incomplete_details` has the reason.",
        forms=(Answer(paths=PATHS, edit=complete),),
    ),
)
