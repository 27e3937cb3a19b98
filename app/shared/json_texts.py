"""Checks of JSON within the strings of a request."""

from __future__ import annotations

import json

from app.core.server.http.errors import bad_request


def check_json(text: object) -> None:
    """Raises ApiError 400 for a text that is not JSON, with the words of Python's parser."""
    if not isinstance(text, str) or not text:
        return
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(str(error)) from None
