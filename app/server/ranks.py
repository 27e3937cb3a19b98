"""Data parallel ranks: each is one worker process with a port, metrics, a queue and randomness of its own.

The first port is the setting `port`, rank k has `port` + k. With `data-parallel-rank` the server plays that
one rank alone, on `port` itself. gunicorn's arbiter opens all listeners; a worker keeps the one of its rank.
Connections to a rank that is being started again wait in the listener's backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from msgspec.structs import replace

from app.server import handover
from config.settings import ServerSettings, Settings

RANK = "UNDERSTUDY_RANK"
"""Environment variable that tells a worker which of the server's ranks it plays."""
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def count(server: ServerSettings) -> int:
    return len(server.ranks)


def addresses(server: ServerSettings) -> list[str]:
    """host:port of every worker, in the order of their ranks; then, if gRPC has ports of its own, those."""
    first = [server.port] if server.grpc_port is None else [server.port, server.grpc_port]
    return [_netloc(server.host, port + k) for port in first for k in range(count(server))]


def bound(settings: Settings, address: Sequence[object]) -> Settings:
    """`settings` with the host and port of gunicorn's `address`, in which its own --bind wins."""
    first = address[0]
    if not isinstance(first, tuple):  # a Unix socket or a file descriptor, which no setting can name
        return settings
    return replace(settings, server=replace(settings.server, host=first[0] or "0.0.0.0", port=first[1]))


def rank_of(server: ServerSettings, environ: Mapping[str, str]) -> int:
    """The rank that this process plays; 0 in a process that no arbiter has given one."""
    return int(environ.get(RANK, "0")) if server.rank is None else server.rank


def served_by(server: ServerSettings, rank: int) -> ServerSettings:
    """The server's settings as `rank` has them: its own port."""
    return server if server.rank is not None else replace(server, port=server.port + rank)


def siblings(settings: Settings) -> list[tuple[int, str]]:
    """Rank and base URL (loopback, without a path) of every rank that this server plays.

    For operations that concern them all. A certificate that is served may not name the loopback address:
    do not verify it.
    """
    server = settings.server
    host = LOOPBACK.get(server.host, server.host)
    scheme = "https" if settings.tls.enabled else "http"
    return [(rank, f"{scheme}://{_netloc(host, server.port + k)}") for k, rank in enumerate(server.ranks)]


def vacant(workers: Iterable[Any], size: int) -> int:
    """Arbiter: the place, of `size`, with the fewest of `workers`; those that are replaced do not count."""
    taken = Counter(worker.place for worker in workers if not handover.is_replaced(worker))
    return min(range(size), key=lambda place: taken[place])


def settle(worker: Any, server: ServerSettings, environ: MutableMapping[str, str]) -> None:
    """Worker, just forked: keep the listeners of our place, close the others, remember the rank."""
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
