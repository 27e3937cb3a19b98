"""The store of responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachetools import LRUCache

from app.extensions.responses.store_errors import invalid

if TYPE_CHECKING:
    from app.extensions.responses.stored_response import StoredResponse

MAX_RESPONSES = 1000
MAX_BYTES = 256 << 20
MEMORY_SHARE = 1 / 16
"""Part of the memory of a process that the store may take, up to `MAX_BYTES`."""


class ResponseStore:
    """Stores responses up to a number and a size; evicts the least recently used one first.

    The store is always empty unless `enabled`.
    """

    def __init__(
        self, enabled: bool, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES
    ) -> None:
        self.enabled = enabled
        self.limit_bytes = max_bytes
        self._max_responses = max_responses
        self._responses: LRUCache[str, StoredResponse] = LRUCache(max_bytes, self._charged_bytes)

    def _charged_bytes(self, response: StoredResponse) -> int:
        # A response that is larger than the store takes all of its room.
        return min(response.size, self.limit_bytes)

    @property
    def size_bytes(self) -> int:
        """Memory of all stored responses."""
        return int(self._responses.currsize)

    def get(self, response_id: str) -> StoredResponse:
        """Returns the response with this id.

        Raises:
            ApiError: 404 for an unknown or evicted response.
        """
        response = self._responses.get(response_id)
        if response is None:
            raise invalid(f"Response with id '{response_id[:80]}' not found.", "response_id", 404)
        return response

    def store(self, response: StoredResponse) -> None:
        """Stores a response, if the store is enabled."""
        if not self.enabled:
            return
        self._responses[response.id] = response
        while len(self._responses) > self._max_responses:
            self._responses.popitem()

    def update_size(self, response: StoredResponse) -> None:
        """Updates the size of a response that has changed, unless it has been evicted."""
        if self._responses.get(response.id) is response:
            self.store(response)
