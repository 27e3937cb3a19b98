"""The handle of a request whose prompts run on several engines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from app.core.engine.sequence import Handle


class SharedHandle(Handle):
    """Ends and awaits the shares of all engines."""

    __slots__ = ("_shares", "_unfinished_shares")

    def __init__(self, shares: Sequence[Handle]) -> None:
        super().__init__({})
        self._shares = shares
        self._unfinished_shares = len(shares)

    @property
    def future(self) -> Future[Any]:
        """Future that completes when every choice has ended, in any way."""
        if self._future is None:
            self._future = Future()
            self._future.set_running_or_notify_cancel()
            for share in self._shares:
                share.future.add_done_callback(self._end_share)
        return self._future

    def _end_share(self, future: Future[Any]) -> None:
        self._unfinished_shares -= 1
        if not self._unfinished_shares and self._future is not None:
            self._future.set_result(None)

    def abort(self) -> None:
        """Ends unfinished choices. Nothing more is emitted."""
        for share in self._shares:
            share.abort()
