"""Encodings of vectors that releases of vLLM before 0.13 do not know."""

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import invalid_field


def refuse_encoding(request: JsonObject, encoding: str, known: str) -> None:
    """Refuses an encoding.

    Args:
        request: The decoded body.
        encoding: The encoding that a release does not know.
        known: The encodings that it knows, as its error lists them.

    Raises:
        ApiError: 400.
    """
    if request.get("encoding_format") == encoding:
        raise invalid_field(
            "literal_error",
            "body.encoding_format",
            f"Input should be {known}",
            encoding,
            {"expected": known},
        )
