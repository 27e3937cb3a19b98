"""gunicorn's settings, made from Understudy's own (docs/configuration.md).

Patched first: with `--preload` the application is imported before a worker could patch anything.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from app import factory, logs  # noqa: E402
from app.tokenization import TokenizerError  # noqa: E402
from app.worker import mark_replaced  # noqa: E402
from config import ConfigError  # noqa: E402
from config.loader import load  # noqa: E402

ONE_RANK = "each worker would be a server of its own, with its own places, queue and metrics, behind one port"

try:
    settings = load((), os.environ)
except ConfigError as error:
    sys.exit(f"error: {error}")

bind = f"{settings.server.host}:{settings.server.port}"
worker_class = "app.worker.Worker"
worker_connections = settings.server.worker_connections
backlog = 4096
keepalive = math.ceil(settings.server.keep_alive_timeout)
graceful_timeout = math.ceil(settings.server.graceful_timeout)
logger_class = logs.ServerLogger
logconfig_dict = logs.logconfig(settings.log)
# No header of a proxy changes anything here, so nobody has to find out who may send one.
forwarded_allow_ips = "*"
secure_scheme_headers = {}
forwarder_headers = ""
# A second socket that nobody here uses, and that read-only images do not allow.
control_socket_disable = True


def on_starting(server):
    """Refuse what cannot be served before a worker tries to, and tell what is served."""
    if server.cfg.workers > 1:
        sys.exit(f"error: workers={server.cfg.workers}: must be 1: {ONE_RANK}")
    named = settings.tokenizer
    if named.tokenizer or named.render_url or named.chat_template:
        try:
            factory.check_tokenizer(settings)
        except TokenizerError as error:
            sys.exit(f"error: {error}")
    server.log.info("settings: %s", json.dumps(settings.dump()))


def nworkers_changed(server, new_value, old_value):
    """SIGTTIN asks for one worker more, which would be a second server on the same port."""
    if old_value is not None and new_value > 1:
        server.log.error("workers=%d: must be 1: %s", new_value, ONE_RANK)
        server._num_workers = 1


def on_reload(server):
    """SIGHUP: the workers of now get successors, and leave new connections to them."""
    for worker in server.WORKERS.values():
        mark_replaced(worker)
