"""Routes of other tasks than the model's, which older releases answer with an error.

Later releases have only the routes of the model's task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from app.core.protocol.decoding import check_content_type
from app.core.server.http.errors import bad_request, malformed
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Handler, Route, post

if TYPE_CHECKING:
    from app.core.api.pipeline import RequestPipeline
    from app.core.server.http.context import RequestContext

APIS = {
    "/v1/chat/completions": "Chat Completions",
    "/v1/completions": "Completions",
    "/v1/responses": "Responses",
    "/v1/embeddings": "Embeddings",
    "/pooling": "Pooling",
    "/classify": "Classification",
    "/score": "Score",
    "/v1/score": "Score",
    "/rerank": "Rerank (Score)",
    "/v1/rerank": "Rerank (Score)",
    "/v2/rerank": "Rerank (Score)",
}
"""vLLM's names of the routes."""
MESSAGES = "/v1/messages"
SPEECH = {
    "/v1/audio/transcriptions": "Transcriptions",
    "/v1/audio/translations": "Translations",
}
"""Routes whose requests are forms."""
FILE = b'name="file"'


class TaskRules(Struct, frozen=True, kw_only=True):
    """Routes that differ between versions of vLLM; the defaults are the newest."""

    has_other_tasks: bool = False
    """The routes of other tasks exist."""


def routes_of_other_tasks(
    reason_for_absence: Callable[[str], str | None], pipeline: RequestPipeline
) -> Iterator[Route]:
    """Yields the routes of tasks that the model does not have.

    `reason_for_absence` returns why a server lacks a path because of its model; None for others.
    """
    for path, api in APIS.items():
        if reason_for_absence(path) is not None:
            yield post(path, _refusal(f"The model does not support {api} API"))
    if reason_for_absence(MESSAGES) is not None:
        yield post(MESSAGES, _message_refusal)
    for path, api in SPEECH.items():
        if reason_for_absence(path) is not None:
            yield post(path, _form_refusal(f"The model does not support {api} API", pipeline))


def _refusal(message: str) -> Handler:
    def handle(context: RequestContext) -> Response:
        """Answers with an error and the status of a success, as vLLM does."""
        check_content_type(context.headers.get("content-type"))
        return json_response(bad_request(message).body())

    return handle


def _message_refusal(context: RequestContext) -> Response:
    """Answers with an error of Anthropic's form."""
    check_content_type(context.headers.get("content-type"))
    error = {"type": "BadRequestError", "message": "The model does not support Messages API"}
    return json_response({"type": "error", "error": error}, 400)


def _form_refusal(message: str, pipeline: RequestPipeline) -> Handler:
    def handle(context: RequestContext) -> Response:
        """Requires a file, and answers with an error and the status of a success."""
        if FILE not in pipeline.body.read(context):
            raise malformed("1 validation error: Field required")
        return json_response(bad_request(message).body())

    return handle
