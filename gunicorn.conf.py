"""gunicorn's settings, made from Understudy's own (docs/configuration.md).

Patched first: with `--preload` the application is imported before a worker could patch anything.
"""

from gevent import monkey

monkey.patch_all()

import math  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from app import logs  # noqa: E402
from app.worker import mark_replaced  # noqa: E402
from config import ConfigError  # noqa: E402
from config.loader import load  # noqa: E402

try:
    settings = load((), os.environ)
except ConfigError as error:
    sys.exit(str(error))

bind = f"{settings.server.host}:{settings.server.port}"
workers = 1
worker_class = "app.worker.Worker"
worker_connections = settings.server.worker_connections
backlog = 4096
keepalive = math.ceil(settings.server.keep_alive_timeout)
graceful_timeout = math.ceil(settings.server.graceful_timeout)
logger_class = logs.ServerLogger
logconfig_dict = logs.logconfig(settings.log)
# A second socket that nobody here uses, and that read-only images do not allow.
control_socket_disable = True


def on_starting(server):
    """One worker is one rank: places, waiting list and seeds live in its process."""
    if server.cfg.workers > 1:
        sys.exit(
            f"workers={server.cfg.workers}: must be 1, because each worker would be a server of its own "
            "with its own places, queue and metrics behind one port."
        )


def on_reload(server):
    """SIGHUP: the workers of now get successors, and leave new connections to them."""
    for worker in server.WORKERS.values():
        mark_replaced(worker)
