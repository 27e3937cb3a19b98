"""When bytes reached the machine, whether or not the client had time to look: the kernel's time
stamps.

With them a client that shares its core with others does not charge its own lateness to the server.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

SO_TIMESTAMPNS = 35
"""Linux, asm-generic/socket.h; Python has no name for it."""
TIMESPEC = struct.Struct("@qq")
ROOM = socket.CMSG_SPACE(TIMESPEC.size)
"""Ancillary bytes that `recvmsg` is to be given."""


def ask_for(sock: socket.socket) -> None:
    """From now on `recvmsg` tells when the last byte that it returns had arrived, if the kernel
    can.
    """
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def stamp_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Unix time of the arrival, nanoseconds, as `time.time_ns`; 0 when the kernel has not told."""
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) == TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack(value)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0
