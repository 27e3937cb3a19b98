"""Reads pipes, terminals and devices, and waits for them for a limited time."""

import errno
import io
import os
import select
import stat

WRITER_TIMEOUT_S = 5.0
"""Longest wait for a program that opens a pipe to write, in seconds."""
PIPE_TIMEOUT_S = 60.0
"""Longest pause of a program that writes to a pipe, in seconds."""


class Stream(io.RawIOBase):
    """A pipe, terminal or device, which is opened without blocking."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        self._has_writer = False

    def readable(self) -> bool:
        """Returns True."""
        return True

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._descriptor

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Reads what has arrived, after waiting for it.

        Raises:
            OSError: the pipe has no writer, or its writer pauses for too long.
        """
        if self._is_pipe and not self._has_writer:
            self._wait(WRITER_TIMEOUT_S, "no program writes to this pipe")
            self._has_writer = True
        while True:
            try:
                return os.readv(self._descriptor, [buffer])
            except BlockingIOError:
                reason = f"no data has arrived for {PIPE_TIMEOUT_S:g} s"
                self._wait(PIPE_TIMEOUT_S, reason)

    def _wait(self, timeout_s: float, reason: str) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        limit_ms: float | None = 1000 * timeout_s
        if os.isatty(self._descriptor):
            limit_ms = None  # a person types
        if not poll.poll(limit_ms):
            raise OSError(errno.ETIMEDOUT, reason, self._name)

    def close(self) -> None:
        """Closes the descriptor."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
