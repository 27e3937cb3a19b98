"""Asking a publisher for batches that were missed, as vLLM's replay socket answers (specification, 2.10)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import zmq
from msgspec import Struct

from app.kvcache.endpoints import is_ipv6
from app.kvcache.replay_buffer import END
from app.kvcache.sockets import affinity

MOST_A_STEP = 256
MOST_BYTES_A_STEP = 1 << 20
HELD_BYTES = 256 << 20
"""Messages of all pods that wait for the ends of replays."""

State = Literal["running", "complete", "failed"]


class Replayed(NamedTuple):
    """A batch that was published before; without a topic from a vLLM up to 0.25."""

    sequence: int
    payload: bytes
    topic: bytes = b""


class ReplayLimits(Struct, frozen=True, kw_only=True):
    """When a replay has failed, how long its publisher is then left alone, and how many may run at once.

    Batches above `most_bytes` end the connection.
    """

    idle_s: float = 2.0
    total_s: float = 120.0
    cool_down_s: float = 30.0
    at_once: int = 8
    most_bytes: int = 128 << 20


class Replay:
    """One request for all batches from `start` on; `now` is a monotonic clock's time in seconds."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        start: int,
        now: float,
        limits: ReplayLimits,
    ) -> None:
        """ZMQError for an endpoint that is none."""
        self.state: State = "running"
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
        """The batches that have come since, some at a time; `state` tells whether there will be more."""
        batches: list[Replayed] = []
        size = 0
        while self.state == "running" and len(batches) < MOST_A_STEP and size < MOST_BYTES_A_STEP:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._idle_until = now + self._idle_s
            size += len(frames[-1])
            self._take(frames, batches)
        if self.state == "running" and not batches and now >= min(self._idle_until, self._until):
            self.state = "failed"
        return batches

    def close(self) -> None:
        self._socket.close(linger=0)

    def _take(self, frames: list[bytes], batches: list[Replayed]) -> None:
        if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != len(END):
            return
        if frames[-2] == END:
            self.state = "complete"
        else:
            topic = frames[1] if len(frames) == 4 else b""
            batches.append(Replayed(int.from_bytes(frames[-2], "big"), frames[-1], topic))


class Replays:
    """Begins replays, a few at once, and bounds what waits for their ends."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        limits: ReplayLimits = ReplayLimits(),  # noqa: B008 (immutable)
    ) -> None:
        """Without a `context` there are none."""
        self.limits = limits
        self.size_bytes = 0
        """What the messages take that wait."""
        self.limit_bytes = HELD_BYTES
        self._context = context
        self._running = 0

    @property
    def possible(self) -> bool:
        return self._context is not None

    def begin(self, endpoint: str, start: int, now: float) -> Replay | None:
        """A replay, or None while too many run. ZMQError for an endpoint that is none."""
        if self._context is None or self._running >= self.limits.at_once:
            return None
        replay = Replay(self._context, endpoint, start, now, self.limits)
        self._running += 1
        return replay

    def end(self, replay: Replay) -> None:
        replay.close()
        self._running -= 1
