"""Changes of vLLM 0.24 to pooling."""

from typing import Any

from app.core.server.http.errors import malformed
from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import objects_in

EMBEDDINGS = ("/v1/embeddings",)
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")


def refuse_batches(request: Any) -> None:
    """Refuses conversations in the input, and several conversations.

    Raises:
        ApiError: 400.
    """
    texts = request.get("input")
    has_conversation = isinstance(texts, list) and any(
        isinstance(item, dict) or any(objects_in(item)) for item in texts
    )
    if has_conversation:
        raise malformed("Input should be a valid string", "body.input")
    messages = request.get("messages")
    if isinstance(messages, list) and any(isinstance(message, list) for message in messages):
        raise malformed("Input should be a valid dictionary", "body.messages")


def accept_negative_top(request: Any) -> None:
    """Asks for all documents where their number is negative."""
    top = request.get("top_n")
    if isinstance(top, int) and top < 0:
        request["top_n"] = 0


CHANGES = (
    Change(
        area="Pooling",
        before="An embedding has one conversation, in `messages`.",
        after="It may have several. `input` may have conversations, too.",
        forms=(Reading(paths=EMBEDDINGS, read=refuse_batches),),
    ),
    Change(
        area="Pooling",
        before="A negative `top_n` asks for all documents.",
        after="A negative `top_n` is an error.",
        forms=(Reading(paths=RERANKS, read=accept_negative_top),),
    ),
)
