"""A listener that waits while there are no file descriptors or memory for more connections."""

from __future__ import annotations

import errno
import logging
import time
from typing import Any

import gevent
from gevent.server import StreamServer

RETRY_S = 0.05
"""Longest time until accepting is tried again after a limit was reached, in seconds."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LOG_INTERVAL_S = 60.0
"""Seconds between two log lines about missing file descriptors or memory for connections."""
log = logging.getLogger(__name__)


class PatientServer(StreamServer):  # type: ignore[misc]
    """Leaves clients in the backlog while the system has no room for more connections."""

    max_delay = RETRY_S
    _silent_until_s = 0.0

    def do_read(self) -> Any:
        """Returns the next connection; None without one.

        Raises:
            GreenletExit: no room for connections; gevent tries again after a delay.
        """
        try:
            return super().do_read()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            now_s = time.monotonic()
            if now_s >= self._silent_until_s:
                self._silent_until_s = now_s + LOG_INTERVAL_S
                log.error(
                    "clients are waiting, because no more connections can be accepted: %s",
                    error.strerror,
                )
            raise gevent.GreenletExit from None
