"""Data parallel ranks: each is a worker process with a separate port, metrics, queue and randomness.

Rank k listens at the setting `port` + k. With `data-parallel-rank` the server plays only this rank, on `port`
itself. gunicorn's arbiter opens all listeners; a worker keeps its rank's listeners. Connections to a
restarting rank wait in the listener's backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from msgspec.structs import replace

from app.serving.gunicorn import handover
from config.settings import ServerSettings, Settings

RANK = "UNDERSTUDY_RANK"
"""Environment variable with a worker's rank."""
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def count(server: ServerSettings) -> int:
    return len(server.ranks)


def addresses(server: ServerSettings) -> list[str]:
    """Returns host:port of every rank in order, then those of separate gRPC ports."""
    first = [server.port] if server.grpc_port is None else [server.port, server.grpc_port]
    return [_netloc(server.host, port + k) for port in first for k in range(count(server))]


def bound(settings: Settings, address: Sequence[object]) -> Settings:
    """Returns `settings` with the host and port of gunicorn's `address`, where --bind has precedence."""
    first = address[0]
    if not isinstance(first, tuple):  # no setting can name a Unix socket or file descriptor
        return settings
    return replace(settings, server=replace(settings.server, host=first[0] or "0.0.0.0", port=first[1]))


def rank_of(server: ServerSettings, environ: Mapping[str, str]) -> int:
    """Returns the rank of this process; 0 in a process without a rank from the arbiter."""
    return int(environ.get(RANK, "0")) if server.rank is None else server.rank


def served_by(server: ServerSettings, rank: int) -> ServerSettings:
    return server if server.rank is not None else replace(server, port=server.port + rank)


def siblings(settings: Settings) -> list[tuple[int, str]]:
    """Returns each of this server's ranks with its base URL (loopback, without a path).

    The server's certificate may not name the loopback address: do not verify it.
    """
    server = settings.server
    host = LOOPBACK.get(server.host, server.host)
    scheme = "https" if settings.tls.enabled else "http"
    return [(rank, f"{scheme}://{_netloc(host, server.port + k)}") for k, rank in enumerate(server.ranks)]


def vacant(workers: Iterable[Any], size: int) -> int:
    """Arbiter: returns the place, below `size`, with the fewest `workers` that are not replaced."""
    taken = Counter(worker.place for worker in workers if not handover.is_replaced(worker))
    return min(range(size), key=lambda place: taken[place])


def settle(worker: Any, server: ServerSettings, environ: MutableMapping[str, str]) -> None:
    """Forked worker: keeps the listeners of its place, closes all others, and sets RANK."""
    if server.rank is None:
        environ[RANK] = str(worker.place)
    if count(server) > 1:
        own = worker.sockets[worker.place :: count(server)]
        for listener in worker.sockets:
            if listener not in own:
                listener.close()
        worker.sockets = own
        worker.log.info("Rank %d listens at %s", worker.place, ", ".join(map(str, own)))


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
