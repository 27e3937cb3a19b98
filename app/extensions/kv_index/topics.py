"""Topics of published messages: names of pods and models."""

from msgspec import Struct

PREFIX = "kv@"
"""Start of a topic in llm-d's form."""
MAX_TOPIC_BYTES = 512
"""Maximum length of a topic, in bytes."""


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
