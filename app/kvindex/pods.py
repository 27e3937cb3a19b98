"""Pods of the index: endpoints of their publishers, names from topics, and connections."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from gevent.socket import getaddrinfo
from msgspec import Struct

from config.declaration import port_of

log = logging.getLogger(__name__)

Resolve = Callable[[str], Sequence[str]]
"""Host name -> addresses, possibly none.

May take long; OSError when the resolver does not answer.
"""


class PodEndpoint(Struct, frozen=True):
    """Addresses of a publisher and of its replay socket, with pod and model for topics without
    them.

    Without `replay`, the replay port of all pods applies, if set. Without `pod`, the name is host
    and port of `endpoint`.
    """

    endpoint: str
    replay: str | None = None
    pod: str | None = None
    model: str | None = None

    @property
    def name(self) -> str:
        return self.pod or self.endpoint.rpartition("://")[2]

    @property
    def host(self) -> str | None:
        """Host of the publisher; None for an endpoint other than tcp."""
        return host_of(self.endpoint) if self.endpoint.startswith("tcp://") else None

    def at(self, address: str) -> PodEndpoint:
        """Returns this endpoint with a host's address; also the replay address, if it has the same
        host.
        """
        replay = self.replay
        if replay is not None and host_of(replay) in (self.host, ANY_HOST):
            replay = _moved(replay, address)
        return PodEndpoint(_moved(self.endpoint, address), replay, self.pod, self.model)


ANY_HOST = "*"


def host_of(endpoint: str) -> str:
    return endpoint.rpartition("://")[2].rpartition(":")[0]


def _moved(endpoint: str, address: str) -> str:
    return f"tcp://{f'[{address}]' if ':' in address else address}:{endpoint.rpartition(':')[2]}"


def parse_target(text: str) -> PodEndpoint:
    """Parses `[tcp://]host:port;replay=tcp://host:port;pod=name;model=name`, options optional.

    ValueError.
    """
    endpoint, *options = text.strip().split(";")
    if "://" not in endpoint:
        endpoint = f"tcp://{endpoint}"
    _check_endpoint(endpoint)
    known: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in ("replay", "pod", "model") or not equals or not value:
            raise ValueError(f"not an option of a KV event source: {option!r}")
        known[name] = value
    if "replay" in known:
        _check_endpoint(known["replay"])
    return PodEndpoint(endpoint, known.get("replay"), known.get("pod"), known.get("model"))


def _check_endpoint(endpoint: str) -> None:
    if port_of(endpoint) == 0:
        raise ValueError(f"nobody publishes at port 0: {endpoint!r}")


class TargetSource:
    """A source of endpoints of pods.

    `read` returns its endpoints, and a complaint about them, or "".
    """

    def __init__(
        self,
        targets: Sequence[PodEndpoint] = (),
        read: Callable[[], tuple[Sequence[PodEndpoint], str]] | None = None,
        name: str = "",
    ) -> None:
        """Without `read` the `targets` are a fixed list."""
        self.targets = targets
        """Endpoints of the latest successful refresh."""
        self._read, self._name, self._complaint = read, name, ""

    def refresh(self) -> None:
        """Updates `targets`, while other greenlets run; after an error they stay, with a warning."""
        if self._read is None:
            return
        try:
            self.targets, complaint = self._read()
        except (OSError, UnicodeDecodeError) as error:
            complaint = f"{self._name} cannot be read, the last list stays: {error}"
        if complaint and complaint != self._complaint:
            log.warning("KV event sources: %s", complaint)
        self._complaint = complaint


def file_targets(path: Path) -> TargetSource:
    """Returns a file with one endpoint a line; `#` begins a comment, invalid lines warn."""

    def read() -> tuple[Sequence[PodEndpoint], str]:
        targets, flaws = [], []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            entry = line.partition("#")[0].strip()
            try:
                targets += [parse_target(entry)] if entry else []
            except ValueError as error:
                flaws.append(f"line {number} of {path} is left out: {error}")
        return targets, "; ".join(flaws)

    return TargetSource((), read, str(path))


def resolve_host(host: str) -> Sequence[str]:
    """Returns the addresses of a host by the system's resolver; other greenlets run meanwhile."""
    try:
        found = getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    return sorted({str(address[4][0]) for address in found})


def dns_targets(target: PodEndpoint, resolve: Resolve = resolve_host) -> TargetSource:
    """Returns all addresses of the host of `target`, such as a headless service, with its options."""
    host = target.host or ""

    def read() -> tuple[Sequence[PodEndpoint], str]:
        addresses, complaint = resolve(host), ""
        if not addresses:
            complaint = f"{host} has no addresses, or nobody knows it"
        elif target.pod and len(addresses) > 1:
            complaint = f"{host} is several pods, all of them called {target.pod}"
        return [target.at(address) for address in addresses], complaint

    return TargetSource((), read, host)


def target_sources(entries: Sequence[str]) -> list[TargetSource]:
    """Returns the sources for `file:path`, `dns://host:port` and endpoints.

    ValueError for other entries.
    """
    fixed: list[PodEndpoint] = []
    sources: list[TargetSource] = []
    for entry in entries:
        if entry.startswith("file:"):
            sources.append(file_targets(Path(entry.removeprefix("file:").removeprefix("//"))))
        elif entry.startswith("dns://"):
            sources.append(dns_targets(parse_target(f"tcp://{entry.removeprefix('dns://')}")))
        else:
            fixed.append(parse_target(entry))
    return [TargetSource(fixed), *sources] if fixed else sources


PREFIX = "kv@"
MOST_NAME_BYTES = 512
"""Longest topic, in bytes."""


class Topic(Struct, frozen=True):
    """Parsed topic: pod, base model if present, and whether the topic has llm-d's form."""

    pod: str
    model: str | None
    standard: bool


def parse_topic(topic: bytes) -> Topic | None:
    """Parses `kv@pod@model`, and any other text as a pod's name; None for a topic without a pod.

    A model may contain `@`, a pod may not. Invalid UTF-8, control characters and topics above
    `MOST_NAME_BYTES` return None.
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


class PodTracker:
    """Tracks pods by the connection of their latest message.

    A pod is gone `grace_s` seconds after its connection closed, unless another connection brings a
    message.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._connections: dict[str, Hashable] = {}
        self._closed: set[Hashable] = set()
        self.due: dict[str, float] = {}
        """Pod -> time when the pod is gone."""

    def seen(self, pod: str, connection: Hashable, now: float) -> None:
        """Notes a message of the pod over the connection, which may be closed by now."""
        self._connections[pod] = connection
        if connection in self._closed:
            self.due.setdefault(pod, now + self._grace_s)
        elif self.due:
            self.due.pop(pod, None)

    def forget(self, pod: str) -> None:
        self._connections.pop(pod, None)
        self.due.pop(pod, None)

    def opened(self, connection: Hashable) -> None:
        self._closed.discard(connection)
        for pod in self._pods(connection):
            self.due.pop(pod, None)

    def replaced(self, connection: Hashable) -> None:
        """Notes that a connection's number was reused; pods of the former connection stay closed."""
        self._closed.discard(connection)
        for pod in self._pods(connection):
            self._connections[pod] = None

    def closed(self, connection: Hashable, now: float) -> None:
        self._closed.add(connection)
        for pod in self._pods(connection):
            self.due.setdefault(pod, now + self._grace_s)

    def step(self, now: float) -> list[str]:
        """Returns, and stops tracking, pods that are gone by now."""
        gone = [pod for pod, due in self.due.items() if due <= now]
        for pod in gone:
            self.forget(pod)
        return gone

    def _pods(self, connection: Hashable) -> list[str]:
        return [pod for pod, other in self._connections.items() if other == connection]
