"""Changes of vLLM 0.18 to responses."""

from typing import Any

from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import objects_in
from app.extensions.responses.releases.v0_21 import is_thought

PATHS = ("/v1/responses",)


def prefer_summaries(request: Any) -> None:
    """Moves the text that is read into the content."""
    for item in filter(is_thought, objects_in(request.get("input"))):
        summary = [*objects_in(item.get("summary"))]
        content = [*objects_in(item.get("content"))]
        if len(summary) == 1:
            item["content"] = [{"type": "reasoning_text", "text": summary[0].get("text")}]
        elif len(content) != 1 and (summary or content):
            item["summary"] = []
            item["content"] = None


CHANGES = (
    Change(
        area="Responses",
        before="The text of a thought in the input is its summary, or else its content, of one "
        "part.",
        after="The text is the first part of the content, or else of the summary.",
        forms=(Reading(paths=PATHS, read=prefer_summaries),),
    ),
)
