"""Which pods there are: named by the topics of their messages, present while their connections are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from msgspec import Struct

PREFIX = "kv@"
MOST_NAME_BYTES = 512
MOST_PODS = 1 << 16
POD_BYTES = 3000
"""What is remembered of a pod, with the longest name that there may be."""
MOST_A_STEP = 64
"""Pods that are found to be gone in one go."""


class Topic(Struct, frozen=True):
    """A pod, the base model that it serves if the topic tells, and whether the topic is of llm-d's form."""

    pod: str
    model: str | None
    standard: bool


def parse(topic: bytes) -> Topic | None:
    """The pod of a topic; None where it names none.

    A model may contain `@`, a pod may not. A topic of another form names the pod as a whole. Bytes that are
    no text, control characters and more than `MOST_NAME_BYTES` name nobody.
    """
    if not 0 < len(topic) <= MOST_NAME_BYTES:
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


class Presence:
    """Pods by the connection that they were last heard on.

    A pod is gone when its connection has been closed for `grace_s` seconds and it was not heard on another.
    More than `most_pods` are not followed.
    """

    def __init__(self, grace_s: float, most_pods: int = MOST_PODS) -> None:
        self._grace_s, self._most_pods = grace_s, most_pods
        self._connections: dict[str, Hashable] = {}
        self._pods: dict[Hashable, set[str]] = {}
        self._closed: set[Hashable] = set()
        self._due: OrderedDict[str, float] = OrderedDict()
        """When pods will be gone; the earliest is first, as all have the same time."""

    @property
    def size_bytes(self) -> int:
        return POD_BYTES * len(self._connections)

    @property
    def limit_bytes(self) -> int:
        return POD_BYTES * self._most_pods

    def seen(self, pod: str, connection: Hashable, now: float) -> None:
        """A message of the pod came over the connection; it may have been closed since."""
        before = self._connections.get(pod)
        if pod not in self._connections and len(self._connections) >= self._most_pods:
            return
        if before != connection:
            if before is not None:
                self._leave(pod, before)
            self._connections[pod] = connection
            self._pods.setdefault(connection, set()).add(pod)
        if connection in self._closed:
            self._due.setdefault(pod, now + self._grace_s)
        else:
            self._due.pop(pod, None)

    def forget(self, pod: str) -> None:
        """The pod is not followed any more."""
        self._due.pop(pod, None)
        connection = self._connections.pop(pod, None)
        if connection is not None:
            self._leave(pod, connection)

    def opened(self, connection: Hashable) -> None:
        """The connection is there (again)."""
        self._closed.discard(connection)
        for pod in self._pods.get(connection, ()):
            self._due.pop(pod, None)

    def replaced(self, connection: Hashable) -> None:
        """Somebody else has the connection now: those who were heard on it stay closed."""
        self._closed.discard(connection)
        for pod in self._pods.pop(connection, set()):
            self._connections[pod] = None

    def closed(self, connection: Hashable, now: float) -> None:
        """The connection is no more."""
        self._closed.add(connection)
        for pod in self._pods.get(connection, ()):
            self._due.setdefault(pod, now + self._grace_s)

    def step(self, now: float) -> list[str]:
        """Pods that are gone by now, some of them at a time; they are no longer known."""
        gone: list[str] = []
        while self._due and len(gone) < MOST_A_STEP:
            pod = next(iter(self._due))
            if self._due[pod] > now:
                break
            gone.append(pod)
            self.forget(pod)
        return gone

    def _leave(self, pod: str, connection: Hashable) -> None:
        pods = self._pods.get(connection)
        if pods is not None:
            pods.discard(pod)
            if not pods:
                del self._pods[connection]
