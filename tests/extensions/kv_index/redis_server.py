"""A Redis of one's own: a process on a free port, with its data in a folder."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.needs import REDIS_SERVER
from tests.running_server import free_port

if TYPE_CHECKING:
    import redis


class RedisServer:
    """Can be killed, and started again on the same port; a `durable` one then has the data that it
    had.
    """

    def __init__(self, folder: Path, durable: bool) -> None:
        self.folder = folder
        self.port = free_port()
        self.durable = durable
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert REDIS_SERVER is not None
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "always",
            "dbfilename": f"{self.port}.rdb",
            "appenddirname": f"aof-{self.port}",
        }
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([REDIS_SERVER, *arguments], stdout=subprocess.DEVNULL)
        self._wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def forget(self) -> None:
        """Remove the data; not while it runs."""
        shutil.rmtree(self.folder / f"aof-{self.port}", ignore_errors=True)

    def client(self) -> redis.Redis:
        import redis

        return redis.Redis(port=self.port)

    def _wait(self) -> None:
        """Until it answers:

        an answer that is refused comes back at once, so look until it is one.
        """
        import redis

        assert self._process is not None
        with redis.Redis(port=self.port) as client:
            while True:
                assert self._process.poll() is None, "redis-server ended"
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.005)


@contextmanager
def redis_server(folder: Path, durable: bool = False) -> Iterator[RedisServer]:
    server = RedisServer(folder, durable)
    server.start()
    try:
        yield server
    finally:
        server.kill()
