"""Rules of RFC 9112 for the head of a request, which gunicorn's parser leaves out and both ways keep."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gunicorn.http.errors import InvalidHeader

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(:\d*)?", re.ASCII)
"""A valid Host (section 3.2): a name or an address, which may not be missing, and perhaps a port."""


def closes(connection: Iterable[str]) -> bool:
    """True if any member of the fields `Connection` is "close" (RFC 9110 7.6.1)."""
    return any(member.strip(" \t").lower() == "close" for value in connection for member in value.split(","))


def has_bare_line_feed(data: bytes) -> bool:
    """True if a line of a head, whole or a beginning, ends without a carriage return (section 2.2)."""
    return data.count(b"\n") != data.count(b"\r\n")


def check_head(req: Any) -> None:
    """Looks at a request of gunicorn's parser. InvalidHeader, answered by 400: Host is missing or broken.

    HTTP/1.0 need not have one. A request that wants the connection to be closed has it closed.
    """
    host = next((value for name, value in req.headers if name == "HOST"), None)
    if (req.version >= (1, 1)) if host is None else not HOST.fullmatch(host):
        raise InvalidHeader("HOST", req=req)
    if closes(value for name, value in req.headers if name == "CONNECTION"):
        req.force_close()
