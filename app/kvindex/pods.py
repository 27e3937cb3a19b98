"""Which pods there are: where they publish, what their topics call them, whether they are connected."""

from __future__ import annotations

import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Protocol

from gevent.socket import getaddrinfo
from msgspec import Struct

from config.zmq_addresses import port_of

log = logging.getLogger(__name__)

Resolve = Callable[[str], Sequence[str]]
"""A host name -> its addresses, none if there are none, which may take long. OSError without an answer."""


class PodEndpoint(Struct, frozen=True):
    """A publisher's address, that of its own replay socket, and name and model where topics lack them.

    Without a `replay`, a port that all pods have in common may answer. Without a name the pod is called by
    host and port of `endpoint`.
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
        """Where it runs; None if it has no address of IP."""
        return host_of(self.endpoint) if self.endpoint.startswith("tcp://") else None

    def at(self, address: str) -> PodEndpoint:
        """The same at one of the addresses of its host, also for replays if the same host answers them."""
        replay = self.replay
        if replay is not None and host_of(replay) in (self.host, ANY_HOST):
            replay = _moved(replay, address)
        return PodEndpoint(_moved(self.endpoint, address), replay, self.pod, self.model)


ANY_HOST = "*"


def host_of(endpoint: str) -> str:
    """The host in a tcp address, as it is written there."""
    return endpoint.rpartition("://")[2].rpartition(":")[0]


def _moved(endpoint: str, address: str) -> str:
    return f"tcp://{f'[{address}]' if ':' in address else address}:{endpoint.rpartition(':')[2]}"


class TargetSource(Protocol):
    """Something that knows endpoints of pods."""

    targets: Sequence[PodEndpoint]
    """The endpoints by the latest answer."""

    def refresh(self) -> None:
        """Looks again, which may take long while other greenlets run; without an answer nothing changes."""


def parse_target(text: str) -> PodEndpoint:
    """`tcp://host:port`, then options after semicolons: `replay=tcp://host:port`, `pod=name`, `model=name`.

    ValueError for anything else.
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


class FixedTargets:
    """A list that stays as it is."""

    def __init__(self, targets: Sequence[PodEndpoint]) -> None:
        self.targets = targets

    def refresh(self) -> None:
        pass


class FileTargets:
    """A file with one endpoint a line, read again when it has changed; `#` begins a comment.

    Other lines are left out and logged; without the file the last list stays.
    """

    def __init__(self, path: Path) -> None:
        self.targets: Sequence[PodEndpoint] = ()
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> None:
        try:
            status = self._path.stat()
            seen = status.st_mtime_ns, status.st_size, status.st_ino
            if seen != self._seen:
                self.targets = self._parse(self._path.read_text("utf-8"))
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            if self._seen != (0, 0, 0):
                log.warning("KV event sources: %s cannot be read, the last list stays: %s", self._path, error)
                self._seen = 0, 0, 0

    def _parse(self, text: str) -> list[PodEndpoint]:
        targets = []
        for number, line in enumerate(text.splitlines(), 1):
            entry = line.partition("#")[0].strip()
            try:
                if entry:
                    targets.append(parse_target(entry))
            except ValueError as error:
                log.warning("KV event sources: line %d of %s is left out: %s", number, self._path, error)
        return targets


def resolve_host(host: str) -> Sequence[str]:
    """The addresses of a name by the system's resolver; other greenlets run meanwhile."""
    try:
        found = getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    return sorted({str(address[4][0]) for address in found})


class DnsTargets:
    """Every address of a host name, such as that of a headless service, with the same port and options."""

    def __init__(self, target: PodEndpoint, resolve: Resolve = resolve_host) -> None:
        """`target` names the host."""
        self.targets: Sequence[PodEndpoint] = ()
        self._target, self._resolve = target, resolve
        self._complaint = ""

    def refresh(self) -> None:
        host, complaint = self._target.host or "", ""
        try:
            addresses = self._resolve(host)
        except OSError as error:
            complaint = f"nobody can tell the addresses of {host}, the last ones stay: {error}"
        else:
            self.targets = [self._target.at(address) for address in addresses]
            if not addresses:
                complaint = f"{host} has no addresses, or nobody knows it"
            elif self._target.pod and len(addresses) > 1:
                complaint = f"{host} is several pods, all of them called {self._target.pod}"
        if complaint and complaint != self._complaint:
            log.warning("KV event sources: %s", complaint)
        self._complaint = complaint


def target_sources(entries: Sequence[str], resolve: Resolve = resolve_host) -> list[TargetSource]:
    """The sources that a list names: targets, `file:path`, and `dns://` for all addresses of a name.

    ValueError for others.
    """
    fixed: list[PodEndpoint] = []
    sources: list[TargetSource] = []
    for entry in entries:
        if entry.startswith("file:"):
            sources.append(FileTargets(Path(entry.removeprefix("file:").removeprefix("//"))))
        elif entry.startswith("dns://"):
            sources.append(DnsTargets(parse_target(f"tcp://{entry.removeprefix('dns://')}"), resolve))
        else:
            fixed.append(parse_target(entry))
    return [FixedTargets(fixed), *sources] if fixed else sources


PREFIX = "kv@"
MOST_NAME_BYTES = 512
MOST_PODS = 1 << 16
MOST_A_STEP = 64
"""Pods that are found to be gone in one go."""


class Topic(Struct, frozen=True):
    """A pod, the base model that it serves if the topic has one, and whether the topic is of llm-d's form."""

    pod: str
    model: str | None
    standard: bool


def parse_topic(topic: bytes) -> Topic | None:
    """The pod of a topic; None where it names none.

    A model may contain `@`, a pod may not. A topic of another form names the pod as a whole. Bytes that are
    no text, control characters and more than `MOST_NAME_BYTES` name no pod.
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
    """Pods by the connection of their latest message.

    A pod is gone when its connection has been closed for `grace_s` seconds and no other
    has brought a message. More than `most_pods` are not followed.
    """

    def __init__(self, grace_s: float, most_pods: int = MOST_PODS) -> None:
        self._grace_s, self._most_pods = grace_s, most_pods
        self._connections: dict[str, Hashable] = {}
        self._pods: dict[Hashable, set[str]] = {}
        self._closed: set[Hashable] = set()
        self._due: OrderedDict[str, float] = OrderedDict()
        """When pods will be gone; the earliest is first, as all have the same time."""

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
        """A number stands for a new connection now: pods of the former one stay closed."""
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
