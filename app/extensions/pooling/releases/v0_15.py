"""Changes of vLLM 0.15 to pooling."""

from typing import Any

from app.core.server.http.errors import malformed
from app.core.versions.change import Change, Reading

CLASSES = ("/classify",)
SCORES = ("/score", "/v1/score")
LATER_SIDES = ("queries", "documents", "data_1", "data_2")


def ignore_later_sides(request: Any) -> None:
    """Removes the texts of a score under their later names."""
    for name in LATER_SIDES:
        request.pop(name, None)


def refuse_tokens(request: Any) -> None:
    """Refuses tokens.

    Raises:
        ApiError: 400.
    """
    texts = request.get("input")
    if isinstance(texts, list) and any(not isinstance(text, str) for text in texts):
        raise malformed("Input should be a valid string", "body.input")


CHANGES = (
    Change(
        area="Pooling",
        before="The texts of a score are `text_1` and `text_2`.",
        after="They may also be `queries` and `documents`, or `data_1` and `data_2`.",
        forms=(Reading(paths=SCORES, read=ignore_later_sides),),
    ),
    Change(
        area="Pooling",
        before="`/classify` accepts texts alone.",
        after="`/classify` accepts tokens, too.",
        forms=(Reading(paths=CLASSES, read=refuse_tokens),),
    ),
)
