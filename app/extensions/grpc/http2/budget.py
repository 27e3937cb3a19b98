"""A limit on HTTP/2 frames without progress, such as PING: each takes about 40 us.

nginx and Envoy close such connections, too: nginx compares the received bytes with the bytes of
payload, and Envoy counts PRIORITY, WINDOW_UPDATE and empty DATA frames against streams and DATA.
"""

from dataclasses import dataclass

from h2.errors import ErrorCodes

from app.extensions.grpc.http2.limits import DATA
from app.extensions.grpc.http2.protocol import ConnectionFailedError

END_STREAM = 0x1
MIN_PROGRESS_BYTES = 64
"""Fewest bytes of a DATA frame that count as progress."""
MAX_FRAMES = 5000
"""Most frames without progress: about 0.2 s of work."""
MAX_FRAMES_PER_CALL = 50
"""More frames for each running call: clients answer messages by WINDOW_UPDATE and PING."""
FRAMES_PER_ANSWER = 10
"""Frames that each DATA frame of an answer, and each ended call, pays for."""
FRAMES_FORGIVEN = 4
"""Frames forgiven at each check of a connection, five times a second; keep-alives send fewer."""


@dataclass(slots=True)
class FrameBudget:
    """Counts the frames of one connection without progress, less those that its answers pay for."""

    _frames: int = 0

    def charge(self, *, kind: int, flags: int, size: int, call_count: int) -> None:
        """Counts a received frame with a payload of `size` bytes, while `call_count` calls run.

        Raises:
            ConnectionFailedError: too many frames without progress.
        """
        if kind == DATA and (size >= MIN_PROGRESS_BYTES or flags & END_STREAM):
            return
        self._frames += 1
        if self._frames > MAX_FRAMES + MAX_FRAMES_PER_CALL * call_count:
            raise ConnectionFailedError(
                ErrorCodes.ENHANCE_YOUR_CALM, "too many frames arrived without progress"
            )

    def pay(self) -> None:
        """Counts a part of an answer. Answers pay for at most MAX_FRAMES of later frames."""
        self._frames = max(self._frames - FRAMES_PER_ANSWER, -MAX_FRAMES)

    def forgive(self) -> None:
        """Called every fifth of a second."""
        if self._frames > 0:
            self._frames = max(self._frames - FRAMES_FORGIVEN, 0)
