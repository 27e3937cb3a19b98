"""Changes of vLLM 0.26 to responses."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Change, Reading

PATHS = ("/v1/responses",)


def refuse_null(request: Any) -> None:
    """Refuses null for `parallel_tool_calls`, which the response cannot repeat.

    Raises:
        ApiError: 400.
    """
    if request.get("parallel_tool_calls", True) is None:
        raise bad_request(
            "1 validation error for ResponsesResponse\nparallel_tool_calls\n  Input should be a "
            "valid boolean [type=bool_type, input_value=None, input_type=NoneType]"
        )


CHANGES = (
    Change(
        area="Responses",
        before="A null for `parallel_tool_calls` is an error.",
        after="A null for `parallel_tool_calls` means the default.",
        forms=(Reading(paths=PATHS, read=refuse_null),),
    ),
)
