"""Reports prompts that a dataset does not have: by a header, in the log, or as an error."""

from __future__ import annotations

import logging

from msgspec import Struct

from app.core.server.http.context import RequestContext, current_request
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware

HEADER = "X-Understudy-Dataset"
"""Header of an answer to a prompt that is not in the dataset. The journal reads it, too."""
MISS = "miss"
ERROR_TYPE = "UnmatchedRequestError"
"""Type of the errors for requests that scripts do not answer, too."""

logger = logging.getLogger(__name__)


class DatasetMiss(Struct, frozen=True):
    """Attached to a request whose prompt is not in the dataset."""

    dataset: str


class DatasetMisses:
    """Notes the misses of all datasets of a server."""

    def __init__(self, *, rejects: bool) -> None:
        """`rejects`: a miss is an error."""
        self._rejects = rejects
        self._logged: set[str] = set()
        """Datasets whose first miss is in the log."""

    def note(self, dataset: str) -> None:
        """Notes that the prompt of the current request is not in a dataset.

        Raises:
            ApiError: 400, misses are rejected.
        """
        context = current_request.get()
        if context is not None:
            context.keep(DatasetMiss(dataset))
        if dataset not in self._logged:
            self._logged.add(dataset)
            effect = "a random reply is sent; dataset-miss: error rejects such requests"
            if self._rejects:
                effect = "the request is rejected"
            logger.warning(
                "dataset %s: a prompt is not in it, and %s; further prompts are not logged",
                dataset,
                effect,
            )
        if self._rejects:
            raise ApiError(400, ERROR_TYPE, "The dataset does not contain a reply to this prompt.")


class MissHeader(Middleware):
    """Adds the header to the answers of requests whose prompts are not in the dataset."""

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the header."""
        if context.kept(DatasetMiss) is not None:
            response.headers[HEADER] = MISS
