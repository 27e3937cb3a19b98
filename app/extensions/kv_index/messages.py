"""A published message, as the pool takes it."""

from msgspec import Struct

MESSAGE_BYTES = 400
"""Memory of a message besides its payload, in bytes, with a topic of usual length."""


class PublishedMessage(Struct, frozen=True, gc=False):
    """A published batch, and the address that replays earlier batches.

    `payload` is None where it was too large to keep. With `per_rank`, `replay` is the address of
    rank 0. `topic` is None for a message without a socket.
    """

    pod: str
    model: str
    sequence: int
    payload: bytes | None
    replay: str | None = None
    per_rank: bool = False
    topic: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """Memory of the message, in bytes."""
        return MESSAGE_BYTES + len(self.payload or b"")
