"""Responses of the Responses API that a client retrieves with `GET /v1/responses/ID`.

A request with `background: true` is answered before the model has replied. The client then polls
until the response has ended, which is the reply that a rule needs.
"""

import re

from msgspec.structs import replace

from app.extensions.recording.exchange import Exchange, RecordedAnswer
from app.extensions.recording.recorded_reply import UNFINISHED, reply_of, response_of

RETRIEVAL = re.compile(r".*/responses/([^/]+)/?")


def retrieved_id(path: str) -> str:
    """Returns the ID of the response that a GET of `path` retrieves; empty for other paths."""
    match = RETRIEVAL.fullmatch(path)
    return match[1] if match else ""


class RetrievedResponses:
    """The answers to the retrievals of a recording, and the IDs that became part of a rule."""

    def __init__(self) -> None:
        self._ended: dict[str, RecordedAnswer] = {}
        self._imported: set[str] = set()

    def add(self, response_id: str, answer: RecordedAnswer) -> None:
        """Adds the answer to a retrieval, unless the response has not ended."""
        if _has_ended(response_of(answer)):
            self._ended[response_id] = answer

    def is_imported(self, response_id: str) -> bool:
        """Returns whether a rule has the reply of this response."""
        return response_id in self._imported

    def completed(self, exchange: Exchange) -> Exchange:
        """Returns an exchange whose answer has the reply that was retrieved later, if any.

        Raises:
            one of INVALID: an answer is not a reply.
        """
        response = response_of(exchange.answer)
        response_id = str(response.get("id"))
        ended = self._ended.get(response_id)
        if ended is None:
            return exchange
        if not _has_ended(response):
            self._imported.add(response_id)
            return replace(exchange, answer=ended)
        if _texts_of(ended) == _texts_of(exchange.answer):
            self._imported.add(response_id)
        return exchange


def _has_ended(response: dict[str, object]) -> bool:
    return "status" in response and response["status"] not in UNFINISHED


def _texts_of(answer: RecordedAnswer) -> tuple[object, ...]:
    """Returns the parts of a reply that a rule has."""
    reply = reply_of(answer)
    return reply.text, reply.reasoning, reply.calls, reply.finish
