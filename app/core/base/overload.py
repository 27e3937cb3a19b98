"""Errors of requests that the server has no room or no time for."""


class MemoryFullError(Exception):
    """Raised for a request whose memory has no room now; see `RequestMemory`."""


class MemoryExceededError(Exception):
    """Raised for a request whose memory never has room."""


class SlotsBusyError(Exception):
    """Raised when too many requests wait for the same work; see `FairSlots`."""


class ClientLeftError(Exception):
    """Raised in a request whose client has disconnected; no client reads its answer."""


class NoWaitError(Exception):
    """Raised in the loop's callbacks before work that waits; a greenlet has to do the work.

    Without it, gevent would raise its own error only at the first wait, after the work has begun.
    """
