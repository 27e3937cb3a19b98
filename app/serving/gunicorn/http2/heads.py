"""Headers of gRPC calls: metadata before the messages of an answer, and the status after them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec
from h2.exceptions import ProtocolError
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack.struct import Header

from app.serving.http.errors import ApiError
from app.serving.http.response import Response
from app.serving.http.rpc import RpcOutcome, RpcResponse, error_response

Headers = list[tuple[bytes, bytes]]

OK: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
UNSUPPORTED: Headers = [(b":status", b"415"), (b"content-type", b"text/plain")]
"""The answer to requests that are no gRPC calls (grpc/doc/PROTOCOL-HTTP2.md)."""
LONGEST_MESSAGE = 2000
"""Most characters of a status message."""
PLAIN = " !#$&'()*+,/:;=?@[]"
"""Characters of a status message sent unescaped, besides letters and digits."""
OF_HTTP = ("content-type", "content-length")
TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
LONGEST_S = 1e9
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters refused in headers: a line break could forge a line wherever headers are shown."""


def read_headers(block: Iterable[Header], is_trailer: bool = False) -> dict[str, str] | None:
    """Returns the headers of a call by name; None when malformed (RFC 9113, section 8.2)."""
    found: dict[str, str] = {}
    flags = HeaderValidationFlags(
        is_client=False, is_trailer=is_trailer, is_response_header=False, is_push_promise=False
    )
    try:
        checked = list(validate_headers(block, flags))
    except ProtocolError:
        return None
    for raw_name, raw_value in checked:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if CONTROL.search(value):
            return None
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def timeout_s(headers: Mapping[str, str]) -> float | None:
    """Returns the client's deadline for its call, in seconds; None without one."""
    found = TIMEOUT.fullmatch(headers.get("grpc-timeout", ""))
    return found and min(LONGEST_S, int(found[1]) * UNITS_S[found[2]])


def metadata(response: Response) -> Headers:
    """Returns the metadata before the first message: the response's headers without those of HTTP."""
    names = ((name.lower(), value) for name, value in response.headers.items())
    return OK + [_encoded(name, value) for name, value in names if name not in OF_HTTP]


def status(outcome: RpcOutcome) -> Headers:
    """Returns the trailers after the last message."""
    trailers = [_encoded("grpc-status", str(int(outcome.code)))]
    if outcome.message:
        message = quote(outcome.message[:LONGEST_MESSAGE], safe=PLAIN)
        trailers.append(_encoded("grpc-message", message))
    return trailers


def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode("latin-1", "replace"), value.encode("latin-1", "replace")


def as_rpc(response: Response) -> RpcResponse:
    """Converts a middleware's HTTP response; the error message in its body becomes the status message."""
    answer = error_response(ApiError(response.status, "", _told(response.body)))
    answer.headers.update(response.headers)
    return answer


def _told(body: object) -> str:
    """Returns the message in an error's JSON body; empty without one."""
    try:
        error = msgspec.json.decode(body)["error"] if isinstance(body, bytes) else ""
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
