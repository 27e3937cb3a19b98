"""A prefill pod of Mooncake for hostile clients of its two servers."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.hostile.raw_client import get, wait_until
from tests.running_server import RunningServer, free_port, running_gunicorn


class MooncakePod(NamedTuple):
    """A prefill pod, and the port of its bootstrap server."""

    server: RunningServer
    bootstrap_port: int


@contextmanager
def running_mooncake_pod(keep_alive_s: float, client_timeout_s: float) -> Iterator[MooncakePod]:
    """Runs a pod; AssertionError if it logs a traceback."""
    port = free_port()
    env = {
        "SIM_ENABLE_KVCACHE": "true",
        "SIM_KV_CONNECTOR": "mooncake",
        "SIM_KV_SIDE_CHANNEL_HOST": "127.0.0.1",
        "SIM_KV_SIDE_CHANNEL_PORT": str(free_port()),
        "SIM_MOONCAKE_BOOTSTRAP_PORT": str(port),
        "SIM_KEEP_ALIVE_TIMEOUT": f"{keep_alive_s}s",
        "SIM_CLIENT_TIMEOUT": f"{client_timeout_s}s",
    }
    with running_gunicorn(env=env) as server:

        def is_listening() -> bool:
            with suppress(OSError):
                return get(port, "/query").status == 200
            return False

        wait_until(is_listening)
        yield MooncakePod(server, port)
        assert "Traceback" not in server.log()
