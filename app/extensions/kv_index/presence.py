"""Presence of pods: which pods are gone, by the state of their connections."""

from __future__ import annotations

from collections.abc import Hashable


class PodTracker:
    """Tracks pods by the connection of their latest message.

    A pod is gone `grace_s` seconds after its connection closed, unless another connection brings a
    message.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._connections: dict[str, Hashable] = {}
        self._closed: set[Hashable] = set()
        self.deadlines: dict[str, float] = {}
        """Pod -> time when the pod is gone."""

    @property
    def connections(self) -> set[Hashable]:
        """Connections of the pods' latest messages."""
        return set(self._connections.values())

    def record_message(self, pod: str, connection: Hashable, now: float) -> None:
        """Records a message of the pod over the connection, which may be closed by now."""
        self._connections[pod] = connection
        if connection in self._closed:
            self.deadlines.setdefault(pod, now + self._grace_s)
        elif self.deadlines:
            self.deadlines.pop(pod, None)

    def forget(self, pod: str) -> None:
        """Stops tracking a pod."""
        self._connections.pop(pod, None)
        self.deadlines.pop(pod, None)

    def record_open(self, connection: Hashable) -> None:
        """Records that a connection was opened; its pods are not gone."""
        self._closed.discard(connection)
        for pod in self._pods(connection):
            self.deadlines.pop(pod, None)

    def record_reuse(self, connection: Hashable) -> None:
        """Records that a connection's number was reused; its former pods stay closed."""
        self._closed.discard(connection)
        for pod in self._pods(connection):
            self._connections[pod] = None

    def record_close(self, connection: Hashable, now: float) -> None:
        """Records that a connection was closed; its pods are gone after the grace period."""
        self._closed.add(connection)
        for pod in self._pods(connection):
            self.deadlines.setdefault(pod, now + self._grace_s)

    def pop_expired(self, now: float) -> list[str]:
        """Returns, and stops tracking, pods that are gone by now."""
        expired = [pod for pod, deadline in self.deadlines.items() if deadline <= now]
        for pod in expired:
            self.forget(pod)
        return expired

    def _pods(self, connection: Hashable) -> list[str]:
        return [pod for pod, latest in self._connections.items() if latest == connection]
