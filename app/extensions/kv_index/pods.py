"""Endpoints of pods' publishers, and the sources that list them: settings, files and DNS."""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from gevent.socket import getaddrinfo
from msgspec import Struct

from config.declaration import port_of
from config.files import open_file, read_rest

log = logging.getLogger(__name__)

Resolve = Callable[[str], Sequence[str]]
"""Host name -> addresses, possibly none.

May take long; raises OSError when the resolver does not answer.
"""

MAX_FILE_BYTES = 4 << 20
"""Largest file with endpoints: some 50,000."""
ANY_HOST = "*"
OPTIONS = ("replay", "pod", "model")


class PodEndpoint(Struct, frozen=True):
    """Addresses of a publisher and of its replay socket, with pod and model for bare topics.

    Without `replay`, the replay port of all pods applies, if set. Without `pod`, the name is host
    and port of `endpoint`.
    """

    endpoint: str
    replay: str | None = None
    pod: str | None = None
    model: str | None = None

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.pod or self.endpoint.rpartition("://")[2]

    @property
    def host(self) -> str | None:
        """Host of the publisher; None for an endpoint other than tcp."""
        return host_of(self.endpoint) if self.endpoint.startswith("tcp://") else None

    def with_address(self, address: str) -> PodEndpoint:
        """Returns this endpoint with a host's address.

        The replay address also changes if it has the same host.
        """
        replay = self.replay
        if replay is not None and host_of(replay) in (self.host, ANY_HOST):
            replay = _replace_host(replay, address)
        return PodEndpoint(_replace_host(self.endpoint, address), replay, self.pod, self.model)


def host_of(endpoint: str) -> str:
    """Returns the host of an endpoint with a port."""
    return endpoint.rpartition("://")[2].rpartition(":")[0]


def _replace_host(endpoint: str, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"tcp://{host}:{endpoint.rpartition(':')[2]}"


def parse_target(text: str) -> PodEndpoint:
    """Parses `[tcp://]host:port;replay=tcp://host:port;pod=name;model=name`, options optional.

    Raises:
        ValueError: the text has another form.
    """
    endpoint, *texts = text.strip().split(";")
    if "://" not in endpoint:
        endpoint = f"tcp://{endpoint}"
    _check_endpoint(endpoint)
    options: dict[str, str] = {}
    for option in texts:
        name, _, value = option.partition("=")
        if name not in OPTIONS or not value:
            raise ValueError(f"invalid option for a KV event source: {option!r}")
        options[name] = value
    if "replay" in options:
        _check_endpoint(options["replay"])
    return PodEndpoint(endpoint, **options)


def _check_endpoint(endpoint: str) -> None:
    if port_of(endpoint) == 0:
        raise ValueError(f"the port must not be 0: {endpoint!r}")


class TargetSource:
    """A source of endpoints of pods: a fixed list, unless a subclass overrides `refresh`."""

    def __init__(self, targets: Sequence[PodEndpoint] = ()) -> None:
        self.targets = targets
        """Endpoints of the latest successful refresh."""

    def refresh(self) -> None:
        """Updates `targets`, while other greenlets run."""


class PolledSource(TargetSource, ABC):
    """A source whose endpoints are read again by each refresh.

    An error keeps the old list. Each new problem is logged as a warning, once.
    """

    def __init__(self, name: str | Path) -> None:
        super().__init__()
        self._name = name
        self._problem = ""

    def refresh(self) -> None:
        """Reads the endpoints; logs a new problem."""
        try:
            self.targets, problem = self._read()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot read {self._name}; keeping the old list: {error}"
        if problem and problem != self._problem:
            log.warning("KV event sources: %s", problem)
        self._problem = problem

    @abstractmethod
    def _read(self) -> tuple[Sequence[PodEndpoint], str]:
        """Returns the endpoints, and a problem with them, or ""."""


class FileSource(PolledSource):
    """A file with one endpoint a line; `#` starts a comment. Invalid lines are skipped."""

    def _text(self) -> str:
        # A pipe would block the event loop, which reads the file every two seconds.
        with open_file(self._name, accepts_pipes=False) as file:
            return read_rest(file, str(self._name), MAX_FILE_BYTES).decode()

    def _read(self) -> tuple[Sequence[PodEndpoint], str]:
        targets = []
        problems = []
        for number, line in enumerate(self._text().splitlines(), 1):
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            try:
                targets.append(parse_target(entry))
            except ValueError as error:
                problems.append(f"skipping line {number} of {self._name}: {error}")
        return targets, "; ".join(problems)


def resolve_host(host: str) -> Sequence[str]:
    """Returns the addresses of a host by the system's resolver; other greenlets run meanwhile.

    Raises:
        OSError: the resolver does not answer.
    """
    try:
        entries = getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    return sorted({str(address[0]) for *_, address in entries})


class DnsSource(PolledSource):
    """All addresses of the host of `target`, such as a headless service, with its options."""

    def __init__(self, target: PodEndpoint, resolve: Resolve = resolve_host) -> None:
        self._target = target
        self._host = target.host or ""
        self._resolve = resolve
        super().__init__(self._host)

    def _read(self) -> tuple[Sequence[PodEndpoint], str]:
        addresses = self._resolve(self._host)
        problem = ""
        if not addresses:
            problem = f"{self._host} has no addresses, or is unknown"
        elif self._target.pod and len(addresses) > 1:
            problem = f"{self._host} has several pods with the same name {self._target.pod}"
        return [self._target.with_address(address) for address in addresses], problem


def target_sources(entries: Sequence[str]) -> list[TargetSource]:
    """Returns the sources for `file:path`, `dns://host:port` and endpoints.

    Raises:
        ValueError: an entry has another form.
    """
    fixed: list[PodEndpoint] = []
    sources: list[TargetSource] = []
    for entry in entries:
        if entry.startswith("file:"):
            path = entry.removeprefix("file:").removeprefix("//")
            sources.append(FileSource(Path(path)))
        elif entry.startswith("dns://"):
            sources.append(DnsSource(parse_target(f"tcp://{entry.removeprefix('dns://')}")))
        else:
            fixed.append(parse_target(entry))
    return [TargetSource(fixed), *sources] if fixed else sources
