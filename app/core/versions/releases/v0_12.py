"""Changes of vLLM 0.12 to chats and completions."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Absent, Change, Reading
from app.core.versions.paths import GENERATING, INVOCATIONS

GUIDED = ("json", "regex", "choice", "grammar", "whitespace_pattern")


def read_guided(request: Any) -> None:
    """Moves the fields of constraints into `structured_outputs`."""
    constraints: dict[str, Any] = {}
    for name in GUIDED:
        value = request.pop(f"guided_{name}", None)
        if value is not None:
            constraints[name] = value
    tag = request.pop("structural_tag", None)
    if tag is not None:
        constraints["structural_tag"] = tag
    if constraints and request.get("structured_outputs") is None:
        request["structured_outputs"] = constraints


def refuse_best_of(request: Any) -> None:
    """Refuses the number of replies to choose from.

    Raises:
        ApiError: 400, unless it is 1.
    """
    number = request.get("best_of")
    if isinstance(number, int) and number > 1:
        raise bad_request("vLLM V1 does not yet support best_of.")


CHANGES = (
    Change(
        area="Chat and completions",
        before="`best_of` is an error.",
        after="`best_of` is ignored.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=refuse_best_of),),
    ),
    Change(
        area="Chat and completions",
        before="`guided_json`, `guided_regex`, `guided_choice` and `guided_grammar` constrain the "
        "reply.",
        after="These fields are ignored; `structured_outputs` has `json`, `regex`, `choice` and "
        "`grammar`.",
        forms=(
            Absent(
                kept=(
                    "ChatCompletionRequest.structured_outputs",
                    "CompletionRequest.structured_outputs",
                )
            ),
            Reading(paths=(*GENERATING, INVOCATIONS), read=read_guided),
        ),
    ),
)
