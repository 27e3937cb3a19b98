"""gunicorn's parser of heads, which accepts and rejects what vLLM's server does (llhttp)."""

import re

from gunicorn.http.errors import (
    InvalidHeader,
    InvalidHTTPVersion,
    InvalidRequestMethod,
)
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser

MAX_HTTP_VERSION = (1, 1)
MAX_BODY_BYTES = 0xFFFF_FFFF_FFFF_FFFF
"""Greatest length of a body that llhttp accepts."""
METHODS = re.compile(
    "DELETE|GET|HEAD|POST|PUT|OPTIONS|TRACE|COPY|LOCK|MKCOL|MOVE|PROPFIND|PROPPATCH|SEARCH|UNLOCK"
    "|BIND|REBIND|UNBIND|ACL|REPORT|MKACTIVITY|CHECKOUT|MERGE|M-SEARCH|NOTIFY|SUBSCRIBE|UNSUBSCRIBE"
    "|PATCH|PURGE|MKCALENDAR|LINK|UNLINK|SOURCE|QUERY"
)
"""The methods of llhttp, without CONNECT, which vLLM's server rejects."""


class HeadRequest(Request):  # type: ignore[misc]
    """A request. Of repeated headers that are no lists, the first applies."""

    def parse_request_line(self, line_bytes: bytes) -> None:
        """Parses the first line of a head.

        Raises:
            ParseException: llhttp does not accept it.
        """
        super().parse_request_line(line_bytes)
        if METHODS.fullmatch(self.method) is None:
            raise InvalidRequestMethod(self.method)
        if self.version > MAX_HTTP_VERSION:
            raise InvalidHTTPVersion(self.version)

    def _apply_header_policy(
        self,
        name: str,
        value: str,
        scheme_state: object,
        seen: set[str],
        *rest: object,
        **options: object,
    ) -> tuple[str, str] | None:
        """Returns a header to keep; None to drop it."""
        if name in seen:  # which has only headers that are no lists
            return None
        if name == "EXPECT" and value.lower() != "100-continue":
            return name, value
        if name == "CONTENT-LENGTH" and value.isdecimal() and int(value[:32]) > MAX_BODY_BYTES:
            raise InvalidHeader(name, req=self)
        return super()._apply_header_policy(  # type: ignore[no-any-return]
            name, value, scheme_state, seen, *rest, **options
        )


class HeadParser(RequestParser):  # type: ignore[misc]
    """Parses the requests of a connection."""

    mesg_class = HeadRequest
