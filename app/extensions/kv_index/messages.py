"""Published messages, as the pool takes them, and their topics: names of pods and models."""

from msgspec import Struct

PREFIX = "kv@"
"""Start of a topic in llm-d's form."""
MAX_TOPIC_BYTES = 512
"""Maximum length of a topic, in bytes."""
MAX_SEQUENCE = 1 << 40
"""Greatest number of a batch: a thousand batches a second take 35 years to reach it.

A greater one is damaged.
"""
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


class Topic(Struct, frozen=True):
    """Parsed topic: pod, base model if present, and whether the topic has llm-d's form."""

    pod: str
    model: str | None
    standard: bool


def parse_topic(topic: bytes) -> Topic | None:
    """Parses `kv@pod@model`, and any other text as a pod's name; None for a topic without a pod.

    A model may contain `@`, a pod may not. Invalid UTF-8, control characters and topics above
    `MAX_TOPIC_BYTES` return None.
    """
    if not 0 < len(topic) <= MAX_TOPIC_BYTES:
        return None
    try:
        text = topic.decode()
    except UnicodeDecodeError:
        return None
    if not text.isprintable():
        return None
    if not text.startswith(PREFIX):
        return Topic(text, None, False)
    pod, separator, model = text.removeprefix(PREFIX).partition("@")
    if not pod:
        return None
    return Topic(pod, model if separator else None, True)
