"""Errors of the HTTP interface, with vLLM's error types.

`ApiError.body()` is the JSON that a client reads. Clients can distinguish two kinds of status 400:

* ``"Bad Request"``, ``param`` starts with ``body``: not JSON, or not in the schema (`malformed`);
* ``"BadRequestError"``, ``param`` is a field name or null: a rule forbids the request
  (`bad_request`).
"""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

_encoder = msgspec.json.Encoder()
MAX_SHOWN_CHARS = 1000
"""Longest text of a client that an error message quotes."""
MAX_VALUE_CHARS = 200
"""Longest value that the error of a field quotes."""


class ApiError(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        code: ``code`` of the body: the status, except in injected errors.
        type: Error type that clients match.
        param: Offending field, or None.
        headers: Extra response headers.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code: int | str | None = status
        self.type = type
        # Both may quote a lone surrogate of the request, which no answer can contain.
        self.message = message.encode("utf-8", "replace").decode()
        self.param = param and param.encode("utf-8", "replace").decode()
        self.headers = headers or {}

    def body(self) -> bytes:
        """The compact JSON body: ``{"error":{"message","type","param","code"}}``."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return _encoder.encode({"error": error})


def sentence(error: object) -> str:
    """Returns the text of an error with a period, unless it ends as a sentence does."""
    text = str(error)
    if text.endswith((".", "?", "!")):
        return text
    return f"{text}."


def too_many(message: str, retry_after_s: int | None = None) -> ApiError:
    """Returns an error 429: the waiting queue is full, or a rate limit is exceeded.

    `retry_after_s` becomes a ``Retry-After`` header in seconds.
    """
    headers = None
    if retry_after_s is not None:
        headers = {"Retry-After": str(retry_after_s)}
    return ApiError(429, "RateLimitError", message, headers=headers)


def bad_request(message: str, param: str | None = None, value: object = None) -> ApiError:
    """Returns an error 400 for a body that is well-formed, but against a rule.

    As in vLLM, the message ends with the field, and with its value, if they are given. Texts are
    cut before a value: a client can send megabytes that they quote.
    """
    if param is None:
        return ApiError(400, "BadRequestError", message)
    end = f"parameter={param}"
    if value is not None:
        message = _shorten(message)
        end += f", value={_shorten(str(value))}"
    return ApiError(400, "BadRequestError", f"{message} ({end})", param)


malformed = partial(ApiError, 400, "Bad Request")
"""Not JSON, or JSON that does not fit the schema; `param` is ``body`` or ``body.<path>``."""
forbidden = partial(ApiError, 403, "PermissionDeniedError")
not_found = partial(ApiError, 404, "NotFoundError")
"""The model (param ``model``) or stored object does not exist."""
too_large = partial(ApiError, 413, "Request Entity Too Large")
internal = partial(ApiError, 500, "InternalServerError")
not_implemented = partial(ApiError, 501, "NotImplementedError")
"""The served model cannot do this."""
unavailable = partial(ApiError, 503, "Service Unavailable")
"""The server does not admit requests now (queue limit reached, draining)."""
timed_out = partial(ApiError, 504, "GatewayTimeoutError")


def too_large_body(max_bytes: int) -> ApiError:
    """Returns the error 413 for a body of more than `max_bytes`."""
    return too_large(f"The request body is larger than {max_bytes >> 20} MiB.")


def _shorten(text: str) -> str:
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}..."


def invalid_fields(
    problems: Sequence[tuple[str, str, str, object, Mapping[str, object] | None]], count: int
) -> ApiError:
    """Returns an error 400 for a body that does not fit the schema, as vLLM words it.

    Each of the `problems` has pydantic's name of its type, such as ``literal_error``, a path, a
    message, the value, and values of the message. There are `count` problems in all.
    """
    label = "error" if count == 1 else "errors"
    lines = [f"{count} validation {label}:"]
    for kind, location, message, value, context in problems:
        problem: dict[str, object] = {"type": kind, "loc": location, "msg": message}
        problem["input"] = _summary(value)
        if context is not None:
            problem["ctx"] = context
        text = str(problem)
        if len(text) > MAX_SHOWN_CHARS:
            text = f"{text[:MAX_SHOWN_CHARS]}...[truncated]"
        lines.append(f"  {text}")
    if count > len(problems):
        lines.append(f"  ...and {count - len(problems)} more {label}")
    return malformed("\n".join(lines), problems[0][1])


def invalid_field(
    kind: str,
    param: str,
    problem: str,
    value: object = None,
    context: Mapping[str, object] | None = None,
) -> ApiError:
    """Returns an error 400 for one value that does not fit the schema; see `invalid_fields`."""
    return invalid_fields([(kind, param, problem, value, context)], 1)


def _summary(value: object) -> str:
    """Returns a value as vLLM shows it: a list or an object, which may be large, by its length."""
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    try:
        text = str(value)
    except ValueError:  # an integer of more than 4,300 digits
        return f"<{type(value).__name__}>"
    if len(text) > MAX_VALUE_CHARS:
        return f"{text[:MAX_VALUE_CHARS]}...[truncated]"
    return text
