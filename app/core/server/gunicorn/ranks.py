"""Data-parallel ranks: worker processes with a separate port, metrics, queue and randomness each.

Rank k listens at the setting `port` + k. With `data-parallel-rank` the server plays only this rank,
on `port` itself. gunicorn's arbiter opens all listeners; a worker keeps its rank's listeners.
Connections to a restarting rank wait in the listener's backlog.

Only the arbiter reads the sources of settings (environment, YAML file), at the start and at a
reload, and passes the settings to the workers. A restarted worker therefore gets the settings of
the other workers, even after the YAML file has changed.

Notes on a worker's stage are in its heartbeat file, which the arbiter and the worker both have
open. A signal only ends a worker; the notes give the reason, which decides how the worker ends.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from config.plugins import from_plain, to_plain
from config.settings import ServerSettings, Settings, TlsSettings

if TYPE_CHECKING:
    from gunicorn.workers.base import Worker

SETTINGS = "UNDERSTUDY_SETTINGS"
"""Environment variable with the settings in force."""
ENDPOINT = "UNDERSTUDY_ENGINE"
"""Environment variable with the address of a real engine."""
RANK = "UNDERSTUDY_RANK"
"""Environment variable with a worker's rank."""
ONE_WORKER_PER_RANK = (
    "each worker is a separate server, with its own KV cache, queue, and metrics, so workers that "
    "share a port would answer in turn with different state. To serve more ranks, each on its own "
    "port, set data-parallel-size"
)
ALL_SERVE = (
    "all of them serve, in turn, because this configuration does not include our gunicorn.conf.py"
)
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
SERVING, REPLACED, ENDING, HANDED_OVER, EXPIRED = range(5)
"""Stages of a worker, whose notes are bytes at these offsets of its heartbeat file.

* SERVING: the worker accepts connections.
* REPLACED: a reload has started its successor.
* ENDING: the whole server ends.
* HANDED_OVER: another process keeps the listeners open, and serves the connections in the backlog.
* EXPIRED: too many reloads have followed, and the requests of this worker must end.
"""


def export_settings(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Writes the settings that differ from their defaults to `environ`, as JSON."""
    environ[SETTINGS] = json.dumps(to_plain(settings))


def exported_settings(environ: Mapping[str, str], base: type[Settings]) -> Settings | None:
    """Returns the settings, of type `base`, that `export_settings` wrote; None without any.

    Raises:
        ConfigError: the settings are not valid.
    """
    text = environ.get(SETTINGS)
    return None if text is None else from_plain(json.loads(text), base)


def note_stage(worker: Worker, stage: int, *, holds: bool = True) -> None:
    """Notes that a stage is reached, or no longer; keeps the time of the last heartbeat."""
    file = worker.tmp.fileno()
    heartbeat = os.fstat(file)
    os.pwrite(file, b"x" if holds else b"-", stage)
    os.utime(file, ns=(heartbeat.st_atime_ns, heartbeat.st_mtime_ns))


def has_stage(worker: Worker, stage: int) -> bool:
    """Returns whether `note_stage` has noted the stage, in any process."""
    return os.pread(worker.tmp.fileno(), 1, stage) == b"x"


def addresses(server: ServerSettings) -> list[str]:
    """Returns host:port of every rank in order, then of separate gRPC ports; or the Unix socket."""
    if server.uds is not None:
        return [f"unix:{server.uds}"]
    first_ports = [server.port]
    if server.grpc_port is not None:
        first_ports.append(server.grpc_port)
    return [
        _netloc(server.host, first_port + k)
        for first_port in first_ports
        for k in range(len(server.ranks))
    ]


def with_address(server: ServerSettings, address: Sequence[object]) -> ServerSettings:
    """Returns `server` with the host and port, or the socket, of gunicorn's `address`.

    --bind has precedence over the settings. No setting can name a file descriptor.
    """
    first = address[0]
    if isinstance(first, tuple):
        return replace(server, host=first[0] or "0.0.0.0", port=first[1], uds=None)
    if isinstance(first, str):
        return replace(server, uds=first)
    return server


def rank_of(server: ServerSettings, environ: Mapping[str, str]) -> int:
    """Returns the rank of this process; the first one in a process without a rank."""
    place = 0
    if len(server.ranks) > 1:
        place = int(environ.get(RANK, "0"))
    return server.ranks[place]


def settings_of_rank(server: ServerSettings, rank: int) -> ServerSettings:
    """Returns the settings of one rank, whose port follows from its number."""
    return replace(server, port=server.port + server.ranks.index(rank))


def rank_urls(server: ServerSettings, tls: TlsSettings) -> list[tuple[int, str]]:
    """Returns each of this server's ranks with its base URL (loopback, without a path).

    The server's certificate may not name the loopback address: do not verify it.
    """
    host = LOOPBACK.get(server.host, server.host)
    scheme = "https" if tls.enabled else "http"
    return [
        (rank, f"{scheme}://{_netloc(host, server.port + k)}")
        for k, rank in enumerate(server.ranks)
    ]


def vacant_place(workers: Iterable[Worker], size: int) -> int:
    """Arbiter: returns the place, below `size`, with the fewest `workers` that are not replaced."""
    counts = Counter(worker.place for worker in workers if not has_stage(worker, REPLACED))
    return min(range(size), key=counts.__getitem__)


def keep_listeners(
    worker: Worker, server: ServerSettings, environ: MutableMapping[str, str]
) -> None:
    """Forked worker: keeps the listeners of its place, closes all others, and sets RANK."""
    if server.rank is None:
        environ[RANK] = str(worker.place)
    if len(server.ranks) > 1:
        listeners = worker.sockets[worker.place :: len(server.ranks)]
        for listener in worker.sockets:
            if listener not in listeners:
                listener.close()
        worker.sockets = listeners
        rank = server.ranks[worker.place]
        worker.log.info("Rank %d is listening at %s", rank, ", ".join(map(str, listeners)))


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
