"""Changes of vLLM 0.12 to responses."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import objects_in

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


CHANGES = (
    Change(
        area="Responses",
        before="A part of the type `output_text` in the input is an error.",
        after="The input may have the messages of earlier responses.",
        forms=(Reading(paths=PATHS, read=refuse_answers),),
    ),
)
