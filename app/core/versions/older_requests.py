"""Parts of the functions that read requests as older releases of vLLM did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.core.base.nested_json import decode_nested
from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, bad_request
from config.untrusted import UntrustedDataError

OF_FIELD = re.compile(r"'loc': 'body\.(\w+)")


def objects_in(items: object) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects of a list, which has not been validated; none of other values."""
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield item


def check_json(text: object) -> None:
    """Raises ApiError 400 for a text that is not JSON, with the words of Python's parser."""
    if not isinstance(text, str) or not text:
        return
    try:
        decode_nested(text)
    except UntrustedDataError as error:
        raise bad_request(str(error)) from None


def fields_of(error: ApiError) -> set[str]:
    """Returns the fields of the body that an error of the schema names."""
    return set(OF_FIELD.findall(error.message))


def has_chosen_call(request: JsonObject) -> bool:
    """Returns whether the request forces a call of a tool."""
    choice = request.get("tool_choice")
    return bool(request.get("tools")) and (isinstance(choice, dict) or choice == "required")
