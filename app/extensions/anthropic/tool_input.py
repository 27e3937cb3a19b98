"""The `input` of a call in a whole message, from the text of the arguments.

A script can let the model write arguments that are not a JSON object. A stream sends their text,
but vLLM decodes them for a whole message, and answers with the error of its decoder.
"""

from collections.abc import Callable
from typing import TypeAlias

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, bad_request
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

MAX_REPR = 50
"""Characters of a value that Pydantic quotes; it drops the middle of longer values."""
NOT_AN_OBJECT = """\
1 validation error for AnthropicContentBlock
input
  Input should be a valid dictionary [type=dict_type, input_value={value}, input_type={type}]
    For further information visit https://errors.pydantic.dev/2.14/v/dict_type"""
NOT_FINITE = "Out of range float values are not JSON compliant"

ReadInput: TypeAlias = Callable[[str], JsonObject | None]


def input_of(arguments: str) -> JsonObject | None:
    """Returns the arguments of a call as an object; None for `null`, which vLLM leaves out.

    Raises:
        ApiError: Status 400, they are not an object, or have a number that JSON cannot express.
    """
    try:
        value = decode_untrusted(arguments)
    except UntrustedDataError:
        raise _error_of(arguments) from None
    if value is None or isinstance(value, dict):
        return value
    raise _error_of(arguments)


def input_or_empty(arguments: str) -> JsonObject:
    """Returns the arguments of a call as an object, which is empty for other arguments."""
    try:
        return input_of(arguments) or {}
    except ApiError:
        return {}


def _error_of(arguments: str) -> ApiError:
    """Returns vLLM's error for arguments that are not an object."""
    try:
        value = decode_untrusted(arguments, decoder=python_json)
    except UntrustedDataError as error:
        return bad_request(str(error))
    if isinstance(value, dict):
        return bad_request(NOT_FINITE)
    text = repr(value)
    if len(text) > MAX_REPR:
        text = f"{text[: MAX_REPR // 2]}...{text[-(MAX_REPR // 2 - 1) :]}"
    return bad_request(NOT_AN_OBJECT.format(value=text, type=type(value).__name__))
