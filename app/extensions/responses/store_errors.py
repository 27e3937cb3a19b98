"""Errors of the routes of stored responses."""

from app.core.server.http.errors import ApiError


def invalid(message: str, param: str, status: int = 400) -> ApiError:
    """Returns an error with the type that vLLM uses for all errors of stored responses."""
    return ApiError(status, "invalid_request_error", message, param)
