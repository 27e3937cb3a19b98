"""HTTP/2 by h2 and hpack, with this server's limits."""

from __future__ import annotations

import re
from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import Decoder
from hpack.exceptions import HPACKDecodingError
from hpack.struct import Header, HeaderTuple

from app.serving.http.rpc import PREFIX_BYTES

MOST_CALLS = 1 << 14
"""Most concurrent calls on one connection."""
MOST_HEADER_BYTES = 1 << 14
"""Most bytes of a call's encoded headers."""
MOST_DECODED_BYTES = 1 << 15
"""Most bytes of a call's decoded headers, with 32 for each header."""
MOST_CLOSED_STREAMS = 1000
"""Closed streams that h2 remembers."""
WINDOW = 1 << 22
"""Flow-control window for requests on one connection, in bytes."""
FIRST_WINDOW = 65_535
"""Initial flow-control window of a connection, in bytes (RFC 9113, section 6.9.2)."""
TABLE_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,9}[\x00-\x7f]){3}")
"""Start of a header block with three table size updates; two are allowed (RFC 7541, section 4.2)."""
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters refused in headers: a line break could forge a line wherever headers are shown."""


class ConnectionFailed(ProtocolError):
    """The client violates the protocol or a limit: the connection ends."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.error_code = code


class HeaderDecoder(Decoder):
    """hpack's decoder with a limit on table size updates: a block full of updates would take 50 ms."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Raises HPACKDecodingError for a block that matches TABLE_SIZES."""
        if TABLE_SIZES.match(data):
            raise HPACKDecodingError("too many changes of the table's size")
        return super().decode(data, raw)


class ServerProtocol(H2Connection):
    """h2's server connection, for messages of up to `most_message_bytes`."""

    MAX_CLOSED_STREAMS = MOST_CLOSED_STREAMS

    def __init__(self, most_message_bytes: int) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                validate_inbound_headers=False,  # a malformed request ends its own stream, not the connection
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        most = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            SettingCodes.INITIAL_WINDOW_SIZE: most_message_bytes + PREFIX_BYTES + WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
        }
        self.local_settings = Settings(client=False, initial_values=most)
        self.decoder = HeaderDecoder(MOST_DECODED_BYTES)
        self._clean_at = MOST_CLOSED_STREAMS
        self.initiate_connection()
        self.increment_flow_control_window(WINDOW - FIRST_WINDOW)

    @property
    def open_inbound_streams(self) -> int:
        """Always 0: `Http2Connection` counts calls, and refuses them one by one.

        h2 reads this property at each new stream, and scans all streams to drop the closed ones. Here the
        scan runs only when closed streams may outnumber open ones.
        """
        if len(self.streams) >= self._clean_at:
            self._clean_at = 2 * super().open_inbound_streams + MOST_CLOSED_STREAMS
        return 0


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
