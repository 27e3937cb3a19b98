"""Replays: requests to vLLM's replay sockets for batches that did not arrive."""

from __future__ import annotations

from typing import Literal, NamedTuple

import zmq
from msgspec import Struct

from app.engine.kvcache.endpoints import is_ipv6
from app.engine.kvcache.publisher import END, affinity

HELD_BYTES = 256 << 20
"""Most bytes of messages that all engines hold back during replays."""
MOST_A_STEP, MOST_BYTES_A_STEP = 256, 1 << 20
"""Most batches, and bytes, of a replay that are read in one go."""


class Replayed(NamedTuple):
    """A batch of a replay; vLLM up to 0.25 sends no topic."""

    sequence: int
    payload: bytes
    topic: bytes = b""


class ReplayLimits(Struct, frozen=True, kw_only=True):
    """Limits of replays, in seconds: without an answer, in total, and the pause after a failure.

    At most `at_once` replays run. A batch above `most_bytes` ends the connection.
    """

    idle_s: float = 2.0
    total_s: float = 120.0
    cool_down_s: float = 30.0
    at_once: int = 8
    most_bytes: int = 128 << 20


class ReplayRequest:
    """A request to vLLM's replay socket for all batches from number `start` on.

    `now` is monotonic, in seconds.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        start: int,
        now: float,
        limits: ReplayLimits,
    ) -> None:
        """Raises ZMQError for an invalid endpoint."""
        self.state: Literal["running", "complete", "failed"] = "running"
        self._idle_until, self._until = now + limits.idle_s, now + limits.total_s
        self._idle_s = limits.idle_s
        self._socket = context.socket(zmq.DEALER)
        try:
            self._socket.linger = 0
            self._socket.maxmsgsize = limits.most_bytes
            self._socket.ipv6 = is_ipv6(endpoint)
            self._socket.affinity = affinity(context, endpoint)
            self._socket.connect(endpoint)
            self._socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.close()
            raise

    def step(self, now: float) -> list[Replayed]:
        """Returns the batches received since the last step; `state` is "running" while more may come."""
        batches: list[Replayed] = []
        size = 0
        while self.state == "running" and len(batches) < MOST_A_STEP and size < MOST_BYTES_A_STEP:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._idle_until = now + self._idle_s
            size += len(frames[-1])
            if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != len(END):
                continue
            if frames[-2] == END:
                self.state = "complete"
            else:
                topic = frames[1] if len(frames) == 4 else b""
                batches.append(Replayed(int.from_bytes(frames[-2], "big"), frames[-1], topic))
        if self.state == "running" and not batches and now >= min(self._idle_until, self._until):
            self.state = "failed"
        return batches

    def close(self) -> None:
        self._socket.close(linger=0)


class Replays:
    """Starts replays, a few at once, and bounds the memory of messages held back meanwhile."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        limits: ReplayLimits = ReplayLimits(),  # noqa: B008 (immutable)
    ) -> None:
        """Without a `context`, no replay starts."""
        self.limits = limits
        self.size_bytes = 0
        """Memory of the messages held back, in bytes."""
        self.limit_bytes = HELD_BYTES
        self._context = context
        self._running = 0

    @property
    def possible(self) -> bool:
        return self._context is not None

    def begin(self, endpoint: str, start: int, now: float) -> ReplayRequest | None:
        """Starts a replay; None while too many run. Raises ZMQError for an invalid endpoint."""
        if self._context is None or self._running >= self.limits.at_once:
            return None
        replay = ReplayRequest(self._context, endpoint, start, now, self.limits)
        self._running += 1
        return replay

    def end(self, replay: ReplayRequest) -> None:
        replay.close()
        self._running -= 1
