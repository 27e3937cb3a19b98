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
"""Host name -> addresses, possibly none. May take long; OSError when the resolver does not answer."""


class PodEndpoint(Struct, frozen=True):
    """Addresses of a publisher and of its replay socket, with pod and model for topics without them.

    Without `replay`, the replay port of all pods applies, if set. Without `pod`, the name is host and port of
    `endpoint`.
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
        """Returns this endpoint with a host's address; also the replay address, if it has the same host."""
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
    """Parses `[tcp://]host:port;replay=tcp://host:port;pod=name;model=name`, options optional. ValueError."""
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
    """A source of endpoints of pods; as it is, a fixed list."""

    def __init__(self, targets: Sequence[PodEndpoint] = (), name: str = "") -> None:
        self.targets = targets
        """Endpoints of the latest successful refresh."""
        self._name, self._complaint = name, ""

    def refresh(self) -> None:
        """Updates `targets`, while other greenlets run; after an error they stay, with a warning."""
        try:
            self.targets, complaint = self._read()
        except (OSError, UnicodeDecodeError) as error:
            complaint = f"{self._name} cannot be read, the last list stays: {error}"
        if complaint and complaint != self._complaint:
            log.warning("KV event sources: %s", complaint)
        self._complaint = complaint

    def _read(self) -> tuple[Sequence[PodEndpoint], str]:
        """Returns the endpoints of now, and a complaint about them, or ""."""
        return self.targets, ""


class FileTargets(TargetSource):
    """A file with one endpoint a line, parsed after each change; `#` begins a comment, invalid lines warn."""

    def __init__(self, path: Path) -> None:
        super().__init__(name=str(path))
        self._path, self._text = path, ""

    def _read(self) -> tuple[Sequence[PodEndpoint], str]:
        before, self._text = self._text, self._path.read_text("utf-8")
        if before == self._text:
            return self.targets, ""
        targets = []
        for number, line in enumerate(self._text.splitlines(), 1):
            entry = line.partition("#")[0].strip()
            try:
                if entry:
                    targets.append(parse_target(entry))
            except ValueError as error:
                log.warning("KV event sources: line %d of %s is left out: %s", number, self._path, error)
        return targets, ""


def resolve_host(host: str) -> Sequence[str]:
    """Returns the addresses of a host by the system's resolver; other greenlets run meanwhile."""
    try:
        found = getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    return sorted({str(address[4][0]) for address in found})


class DnsTargets(TargetSource):
    """All addresses of a host name, such as a headless service, with one port and the same options."""

    def __init__(self, target: PodEndpoint, resolve: Resolve = resolve_host) -> None:
        """`target` has the host, the port and the options."""
        super().__init__(name=target.host or "")
        self._target, self._resolve = target, resolve

    def _read(self) -> tuple[Sequence[PodEndpoint], str]:
        addresses = self._resolve(self._name)
        complaint = ""
        if not addresses:
            complaint = f"{self._name} has no addresses, or nobody knows it"
        elif self._target.pod and len(addresses) > 1:
            complaint = f"{self._name} is several pods, all of them called {self._target.pod}"
        return [self._target.at(address) for address in addresses], complaint


def target_sources(entries: Sequence[str], resolve: Resolve = resolve_host) -> list[TargetSource]:
    """Returns the sources for `file:path`, `dns://host:port` and endpoints. ValueError for other entries."""
    fixed: list[PodEndpoint] = []
    sources: list[TargetSource] = []
    for entry in entries:
        if entry.startswith("file:"):
            sources.append(FileTargets(Path(entry.removeprefix("file:").removeprefix("//"))))
        elif entry.startswith("dns://"):
            sources.append(DnsTargets(parse_target(f"tcp://{entry.removeprefix('dns://')}"), resolve))
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

    A pod is gone `grace_s` seconds after its connection closed, unless another connection brings a message.
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
