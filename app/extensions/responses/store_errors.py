"""Errors of responses that vLLM marks with OpenAI's type."""

from app.core.server.http.errors import ApiError


def invalid(message: str, param: str, status: int = 400) -> ApiError:
    """Returns an error with the type that vLLM raises only for responses."""
    return ApiError(status, "invalid_request_error", message, param)
