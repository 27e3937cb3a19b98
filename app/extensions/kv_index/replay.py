"""Replays: requests for an engine's earlier batches at vLLM's replay socket."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import zmq
from gevent.select import POLLIN, poll

from app.core.engine.kvcache.publishing import is_ipv6
from app.core.engine.kvcache.replay import END
from app.core.engine.kvcache.sockets import affinity
from app.extensions.kv_index.messages import MAX_SEQUENCE
from app.extensions.kv_index.resources import StreamResources

POLL_S = 0.02
"""Maximum wait for a replay's next message, in seconds, before limits are checked."""


class ForeignReplayError(Exception):
    """Raised for a batch of a replay from another pod or rank."""


class ReplayedBatch(NamedTuple):
    """A batch of a replay; `payload` is None if too large. vLLM up to 0.25 sends no topic."""

    sequence: int
    payload: bytes | None
    topic: bytes = b""


def request_replay(
    resources: StreamResources, endpoint: str, start: int
) -> Generator[ReplayedBatch | None, None, None]:
    """Requests all batches from number `start` on; yields None before each wait.

    Raises:
        ZMQError: the endpoint is invalid.
        TimeoutError: the answer is late, or does not end in time.
    """
    assert resources.context is not None
    now = resources.now
    settings = resources.settings
    deadline_s = now() + settings.replay_total_s
    idle_deadline_s = now() + settings.replay_idle_s
    with resources.context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.maxmsgsize = settings.max_answer_bytes
        socket.ipv6 = is_ipv6(endpoint)
        socket.affinity = affinity(resources.context, endpoint)
        socket.connect(endpoint)
        socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        readable = poll()
        readable.register(socket.fileno(), POLLIN)
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                if now() >= min(idle_deadline_s, deadline_s):
                    raise TimeoutError from None
                yield None
                readable.poll(POLL_S * 1000)
                continue
            idle_deadline_s = now() + settings.replay_idle_s
            if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != len(END):
                continue
            *head, sequence, payload = frames
            if sequence == END:
                return
            number = int.from_bytes(sequence, "big")
            if number > MAX_SEQUENCE:
                continue
            yield ReplayedBatch(
                sequence=number,
                payload=payload if len(payload) <= settings.max_payload_bytes else None,
                topic=head[1] if len(head) == 2 else b"",
            )
