"""Whose messages a topic announces: `kv@<pod>@<model>`, as llm-d names them."""

from __future__ import annotations

from msgspec import Struct

PREFIX = "kv@"
MOST_BYTES = 512


class Topic(Struct, frozen=True):
    """A pod, the base model that it serves if the topic tells, and whether the topic is of llm-d's form."""

    pod: str
    model: str | None
    standard: bool


def parse(topic: bytes) -> Topic | None:
    """The pod of a topic; None where it names none.

    A model may contain `@`, a pod may not. A topic of another form names the pod as a whole. Bytes that are
    no text, control characters and more than `MOST_BYTES` name nobody.
    """
    if not 0 < len(topic) <= MOST_BYTES:
        return None
    try:
        text = topic.decode()
    except UnicodeDecodeError:
        return None
    if not text.isprintable():
        return None
    if text.startswith(PREFIX):
        pod, at, model = text.removeprefix(PREFIX).partition("@")
        return Topic(pod, model if at else None, True) if pod else None
    return Topic(text, None, False)
