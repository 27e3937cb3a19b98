"""What stands before and behind the messages of an answer: metadata, and the status of a call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec

from app.http.errors import ApiError
from app.http.response import Response
from app.http.rpc import RpcOutcome, RpcResponse, error_response
from app.server.http2.hpack import Header, encode

OK = b"\x88\x0f\x10\x10application/grpc"
"""`:status: 200` and the content type, by their places in HPACK's table."""
UNSUPPORTED = b"\x08\x03415\x0f\x10\x0atext/plain"
"""Status 415 and a content type: what is no call of gRPC (grpc/doc/PROTOCOL-HTTP2.md)."""
LONGEST_MESSAGE = 2000
"""Characters of a status' message."""
PLAIN = " !#$&'()*+,/:;=?@[]"
"""Characters of it that are told as they are, besides letters and digits."""
OF_HTTP = ("content-type", "content-length")


TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
LONGEST_S = 1e9
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
MALFORMED = re.compile(r"[^ -~\t\x80-\xff]")
"""What no header has in it (RFC 9113, 8.2.1): it could be a line of its own wherever headers are shown."""
UPPER = re.compile(r"[A-Z]")


def read_headers(block: Iterable[Header]) -> dict[str, str] | None:
    """Headers of a call by their names; None when they are malformed."""
    found: dict[str, str] = {}
    for name, value in block:
        if not name or MALFORMED.search(value) or MALFORMED.search(name) or UPPER.search(name):
            return None
        if name in found:
            if name.startswith(":"):
                return None
            value = f"{found[name]},{value}"
        found[name] = value
    return found


def timeout_s(headers: Mapping[str, str]) -> float | None:
    """How long the client waits for the end of its call; None when it does not say so."""
    found = TIMEOUT.fullmatch(headers.get("grpc-timeout", ""))
    return found and min(LONGEST_S, int(found[1]) * UNITS_S[found[2]])


def metadata(response: Response) -> bytes:
    """The block before the first message: the headers of the response, but for those of HTTP alone."""
    names = ((name.lower(), value) for name, value in response.headers.items())
    return OK + encode((name, value) for name, value in names if name not in OF_HTTP)


def status(outcome: RpcOutcome) -> bytes:
    """The block behind the last message."""
    told = [("grpc-status", str(int(outcome.code)))]
    if outcome.message:
        told.append(("grpc-message", quote(outcome.message[:LONGEST_MESSAGE], safe=PLAIN)))
    return encode(told)


def as_rpc(response: Response) -> RpcResponse:
    """What a middleware answered in the method's place; its body says why."""
    answer = error_response(ApiError(response.status, "", _told(response.body)))
    answer.headers.update(response.headers)
    return answer


def _told(body: object) -> str:
    """What an error's body says, if it is one of ours."""
    try:
        error = msgspec.json.decode(body)["error"] if isinstance(body, bytes) else ""
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
