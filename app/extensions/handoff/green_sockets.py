"""ZMQ sockets of gevent that also work when the process has no file descriptors left."""

from __future__ import annotations

import resource

import zmq
import zmq.green

FILES_PER_PEER = 8
"""Allowed open files for each connected peer, which needs two or three."""


class GreenSocket(zmq.green.Socket):  # type: ignore[type-arg]  # not generic at run time
    """A socket whose creation may fail: gevent's cannot be closed then, and prints a traceback."""

    def close(self, linger: int | None = None) -> None:
        """Closes the socket; a closed or incomplete one, too."""
        if self._state_event is None:
            zmq.Socket.close(self, linger)
        else:
            super().close(linger)


class GreenContext(zmq.green.Context):  # type: ignore[type-arg]  # neither
    """A context of such sockets."""

    _socket_class = GreenSocket


def peer_limit(maximum: int) -> int:
    """Returns how many peers the limit on open files allows, at most `maximum`."""
    max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max_files == resource.RLIM_INFINITY:
        return maximum
    return max(1, min(maximum, max_files // FILES_PER_PEER))
