"""Type of the body of ``POST /v1/responses``, by version of vLLM."""

from app.core.protocol.features import Feature, VllmVersion
from app.extensions.responses.protocol import ResponsesRequest


def request_type(version: VllmVersion) -> type[ResponsesRequest]:
    """Returns the type of the body in a version of vLLM."""
    if not version.has(Feature.RESPONSE_CACHE_FIELDS):
        return ResponsesRequest
    from app.extensions.responses.cache_fields import CachedResponsesRequest

    return CachedResponsesRequest
