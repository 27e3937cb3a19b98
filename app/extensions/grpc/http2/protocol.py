"""The HTTP/2 protocol of one connection: h2 and hpack with this server's limits."""

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

from app.extensions.grpc.http2.limits import (
    INITIAL_WINDOW_BYTES,
    WINDOW_BYTES,
    announced_settings,
)

Headers = list[tuple[bytes, bytes]]
MAX_DECODED_BYTES = 1 << 15
"""Most bytes of a call's decoded headers, with 32 for each header."""
MAX_CLOSED_STREAMS = 1000
"""Closed streams whose ends h2 remembers."""
MAX_ENDED_STREAMS = 100
"""Most closed streams, of 1 KB each, beside as many as are open."""
TABLE_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,9}[\x00-\x7f]){3}")
"""Start of a header block with three table size updates; two are allowed (RFC 7541, section 4.2).
"""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters refused in headers: a line break could forge a line wherever headers are shown."""


class ConnectionFailedError(ProtocolError):
    """The client violates the protocol or a limit: the connection ends."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.error_code = code


class HeaderDecoder(Decoder):
    """hpack's decoder with a limit on table size updates.

    A block full of updates would take 50 ms.
    """

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Decodes a header block.

        Raises:
            HPACKDecodingError: the block is not valid, or matches TABLE_SIZES.
        """
        if TABLE_SIZES.match(data):
            raise HPACKDecodingError("too many changes to the header table size")
        return super().decode(data, raw)


class ServerProtocol(H2Connection):
    """h2's server connection, for messages of up to `max_message_bytes`.

    `greeted` are the client's first frames, which `Http2Greeting` has answered, as it has sent the
    server's.
    """

    MAX_CLOSED_STREAMS = MAX_CLOSED_STREAMS

    def __init__(self, max_message_bytes: int, greeted: bytes) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                # A malformed request ends its stream, not the connection.
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        settings = {
            SettingCodes(identifier): value
            for identifier, value in announced_settings(max_message_bytes).items()
        }
        self.local_settings = Settings(client=False, initial_values=settings)
        self.decoder = HeaderDecoder(MAX_DECODED_BYTES)
        self._scan_size = MAX_ENDED_STREAMS
        """Number of streams above which closed ones are dropped."""
        self.initiate_connection()
        self.increment_flow_control_window(WINDOW_BYTES - INITIAL_WINDOW_BYTES)
        self.receive_data(greeted)
        self.clear_outbound_data_buffer()

    def end(self) -> None:
        """Reads no more frames.

        The table's bound methods would keep this object until a full collection.
        """
        self._frame_dispatch_table.clear()

    @property
    def open_inbound_streams(self) -> int:
        """Always 0: `Http2Connection` counts calls, and refuses them one by one.

        h2 reads this property at each new stream, and scans all streams to drop the closed ones.
        Here the scan runs only when closed streams may outnumber open ones.
        """
        if len(self.streams) >= self._scan_size:
            self._scan_size = 2 * super().open_inbound_streams + MAX_ENDED_STREAMS
        return 0


def read_headers(block: Iterable[Header], is_trailer: bool = False) -> dict[str, str] | None:
    """Returns the headers of a call by name; None when malformed (RFC 9113, section 8.2)."""
    flags = HeaderValidationFlags(
        is_client=False, is_trailer=is_trailer, is_response_header=False, is_push_promise=False
    )
    try:
        valid_headers = list(validate_headers(block, flags))
    except ProtocolError:
        return None
    headers: dict[str, str] = {}
    for raw_name, raw_value in valid_headers:
        name = raw_name.decode("latin-1")
        value = raw_value.decode("latin-1")
        if CONTROL_CHARACTERS.search(value):
            return None
        if name in headers:
            value = f"{headers[name]},{value}"
        headers[name] = value
    return headers
