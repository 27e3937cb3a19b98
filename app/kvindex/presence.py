"""Which pods are still there, told from their connections."""

from __future__ import annotations

from collections.abc import Hashable


class Presence:
    """Pods by the connection that they were last heard on.

    A pod is gone when its connection has been closed for `grace_s` seconds and it was not heard on another.
    More than `most_pods` are not followed.
    """

    def __init__(self, grace_s: float, most_pods: int = 1 << 16) -> None:
        self._grace_s, self._most_pods = grace_s, most_pods
        self._connections: dict[str, Hashable] = {}
        self._pods: dict[Hashable, set[str]] = {}
        self._closed: set[Hashable] = set()
        self._due: dict[str, float] = {}

    def heard(self, pod: str, connection: Hashable, now: float) -> None:
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
        """The pods that are gone by now; they are no longer known."""
        gone = [pod for pod, due in self._due.items() if due <= now]
        for pod in gone:
            del self._due[pod]
            connection = self._connections.pop(pod)
            if connection is not None:
                self._leave(pod, connection)
        return gone

    def _leave(self, pod: str, connection: Hashable) -> None:
        pods = self._pods.get(connection)
        if pods is not None:
            pods.discard(pod)
            if not pods:
                del self._pods[connection]
