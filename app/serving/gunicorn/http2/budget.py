"""A limit on frames without progress, such as PING: each costs some 40 us and brings nobody an answer.

nginx and Envoy close such connections, too: nginx compares all received bytes with those of payload, and
Envoy counts PRIORITY, WINDOW_UPDATE and empty DATA frames against streams and DATA frames.
"""

from h2.errors import ErrorCodes

from app.serving.gunicorn.http2 import transport

DATA = 0x0
END_STREAM = 0x1
LITTLE_BYTES = 64
"""Fewest bytes of a DATA frame that count as progress: smaller ones take longer than their content."""
MOST_FRAMES = 5000
"""Most frames without progress: about 0.2 s of work."""
MOST_FRAMES_PER_CALL = 50
"""The same for each running call: clients may send a WINDOW_UPDATE or a PING for what they receive."""
FRAMES_PER_ANSWER = 10
"""Frames that each DATA frame of an answer, and each ended call, pays for."""
FRAMES_FORGIVEN = 4
"""Frames forgiven at each check of a connection, every fifth of a second: more than any keep-alive sends."""


class FrameBudget:
    """Counts the frames of one connection that bring nothing, less those that its answers pay for."""

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames = 0

    def take(self, kind: int, flags: int, size: int, calls: int) -> None:
        """Counts a received frame with a payload of `size` bytes, while `calls` run.

        Raises:
            ConnectionFailed: too many frames without progress.
        """
        if kind == DATA and (size >= LITTLE_BYTES or flags & END_STREAM):
            return
        self._frames += 1
        if self._frames > MOST_FRAMES + MOST_FRAMES_PER_CALL * calls:
            text = "too many frames without progress"
            raise transport.ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, text)

    def pay(self) -> None:
        """Counts a part of an answer. Answers pay for at most MOST_FRAMES of later frames."""
        self._frames = max(self._frames - FRAMES_PER_ANSWER, -MOST_FRAMES)

    def forgive(self) -> None:
        """Called every fifth of a second."""
        if self._frames > 0:
            self._frames = max(self._frames - FRAMES_FORGIVEN, 0)
