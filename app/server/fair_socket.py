"""A client's socket as gunicorn's parser reads it, in parts and in fair turns."""

from __future__ import annotations

from typing import Any

from app.server.fair_turns import FairTurns, Share

PARSED_BYTES = 8192
"""Most bytes that gunicorn reads at once where it looks for the end of a head or of a chunk."""
PART_BYTES = 4096
"""Bytes that are parsed at once: chunks of one byte take 4 ms then."""


class FairSocket:
    """A client's socket as gunicorn's parser reads it, behind `data` that was read before.

    Bytes come in small parts, and other connections may go first after each.
    """

    __slots__ = ("_client", "_data", "_share", "_turns", "gettimeout", "settimeout")

    def __init__(self, client: Any, data: bytes, turns: FairTurns, share: Share) -> None:
        self._client, self._data, self._turns, self._share = client, data, turns, share
        self.gettimeout, self.settimeout = client.gettimeout, client.settimeout

    def recv(self, size: int) -> bytes:
        """Returns at most `size` bytes, as the socket does; OSError likewise."""
        if size <= PARSED_BYTES:  # gunicorn does not know how much is to come
            size = PART_BYTES
        if self._data:
            data, self._data = self._data[:size], self._data[size:]
        else:
            data = self._client.recv(size)
        self._turns.wait(self._share)
        return data

    def take_rest(self) -> bytes:
        """Returns what was read before and not yet handed out."""
        rest, self._data = self._data, b""
        return rest
