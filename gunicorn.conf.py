"""gunicorn's settings, made from Understudy's own (docs/configuration.md, docs/operations.md).

Patched first: with `--preload` the application is imported before a worker could patch anything.
"""

import ctypes
import gc
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from gevent import monkey

# What a start makes stays. To look for garbage among it would take a tenth of the start's time.
gc.disable()


def gevent_plugins():
    """Yield entry points for gevent's patches: one of gevent, and those of other packages."""
    for folder in sys.path:
        for file in Path(folder).glob("*-info/entry_points.txt"):
            if b"[gevent." in file.read_bytes():
                yield from metadata.Distribution.at(file.parent).entry_points


# gevent asks for them 25 times, and would parse those of all packages each time: 8 ms.
entry_points = metadata.entry_points
metadata.entry_points = metadata.EntryPoints(gevent_plugins()).select
monkey.patch_all()
metadata.entry_points = entry_points

import math  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402

from app.core.server.gunicorn.early_signals import hold_signals, ignore_signals  # noqa: E402

# Signals that arrive from here on wait until the arbiter handles them.
hold_signals()

from app.core import application  # noqa: E402
from app.core.server.gunicorn import logs, ranks  # noqa: E402
from app.core.server.gunicorn.arbiter import RankArbiter, ServerChecks, take_over  # noqa: E402
from app.core.server.gunicorn.errors import CertificateError  # noqa: E402
from app.core.server.gunicorn.ignored_options import option_warnings  # noqa: E402
from app.core.server.gunicorn.startup_log import (  # noqa: E402
    is_generating,
    log_address,
    log_model,
    log_request,
)
from app.core.settings import load, settings_type  # noqa: E402
from app.core.text.base import TokenizerError  # noqa: E402
from app.core.versions.chain import simulated_version  # noqa: E402
from config import ConfigError  # noqa: E402
from config.environment import FOLDER  # noqa: E402
from config.sections.server import LAST_ANSWERS_S  # noqa: E402

UNREAD_BYTES = 1 << 16
"""Bytes that the kernel keeps of an answer whose client does not read, and twice as many with its
own data; it would keep 4 MB, which count as memory of the container (cgroup v2)."""


def enter_folder():
    """Change to the folder of the command, where relative paths of settings begin, and return it.

    It is the folder of this file if the other was deleted since the start, as a reload needs any
    folder, or if the user of the server may not enter it, as one that `sudo` changed to.
    """
    folder = os.environ[FOLDER]
    try:
        os.chdir(folder)
    except OSError:
        folder = os.path.dirname(__file__)
        os.chdir(folder)
    return folder


# gunicorn began in this file's folder, where the modules are, and changes to `chdir` after it has
# read this file. It would put that folder first in the path, where a user's `app` hides ours.
if os.environ.get(FOLDER):
    chdir = enter_folder()
    if chdir not in sys.path:
        sys.path.append(chdir)

# A reload runs this file again, with settings that the arbiter has read and found good.
warnings = []
try:
    settings = ranks.exported_settings(os.environ, settings_type())
    if settings is None:
        settings = load((), os.environ, warnings.append)
        ranks.export_settings(settings, os.environ)
except ConfigError as error:
    sys.exit(f"error: {error}")

bind = ranks.addresses(settings.server)
if "WEB_CONCURRENCY" not in os.environ:  # else gunicorn takes it, and `take_over` warns about it
    workers = len(settings.server.ranks)
worker_class = "app.core.server.gunicorn.worker.Worker"
worker_connections = 16_384  # or as many as open files allow
backlog = 4096
keepalive = math.ceil(settings.server.keep_alive_timeout)
graceful_timeout = math.ceil(settings.server.graceful_timeout)
if settings.server.shutdown_mode == "vllm":
    graceful_timeout = math.ceil(settings.server.shutdown_timeout + LAST_ANSWERS_S) + 1
logger_class = logs.logger_class(settings.log)
loglevel = settings.log.log_level
# No header of a proxy changes anything here, so nobody has to find out who may send one.
forwarded_allow_ips = "*"
# The size limits a whole head (`FairSocket`), of which the request line is a part.
limit_request_line = 0
limit_request_fields = settings.server.h11_max_header_count
limit_request_field_size = settings.server.h11_max_incomplete_event_size
secure_scheme_headers = {}
forwarder_headers = ""
# A second socket that nobody here uses, and that read-only images do not allow.
control_socket_disable = True


def on_starting(server):
    """Check what a worker would have to serve, log it, and run our arbiter until the server ends.

    Our arbiter calls this hook, too.
    """
    if isinstance(server, RankArbiter):
        return
    try:
        checks = ServerChecks(
            load=load_again,
            prepare=application.prepare,
            create=application.create_app,
            engine_options=application.engine_options,
            new_engine_process=application.new_engine_process,
        )
        arbiter = take_over(server, settings, checks)
    except (ConfigError, CertificateError, TokenizerError, OSError) as error:
        sys.exit(f"error: {error}")
    for warning in [*warnings, *option_warnings(server.cfg)]:
        arbiter.log.warning("%s", warning)
    log_model(arbiter.log, arbiter.settings, application.roles(arbiter.settings))
    arbiter.run()


def load_again(warn):
    """Read the settings for a reload."""
    if os.environ.get(FOLDER):
        enter_folder()
    return load((), os.environ, warn)


def when_ready(server):
    """Log the address, and keep inherited objects from the garbage collector: they stay shared."""
    parts = server.settings
    has_console = parts.get("console", False)
    release = simulated_version(parts.api).release
    log_address(server.log, parts.server, parts.tls, release=release, has_console=has_console)
    generates = is_generating(parts.model.task, parts.get("role", "server"))
    if generates and parts.server.uds is None:
        log_request(server.log, parts.server, parts.tls, has_key=bool(parts.access.api_key))
    gc.freeze()
    gc.enable()


def on_reload(server):
    """Log the model that is served from now on."""
    gc.enable()
    log_model(server.log, settings, application.roles(settings))


def pre_fork(server, worker):
    """Assign the place of a rank that has no worker, or whose worker gets a successor."""
    server.log.is_start = worker.age <= len(settings.server.ranks)
    worker.place = ranks.vacant_place(server.WORKERS.values(), len(settings.server.ranks))


def post_fork(server, worker):
    """Prepare the worker to serve the rank of its place."""
    gc.disable()
    worker.certificate = getattr(
        server, "certificate", None
    )  # a configuration around ours may replace hooks
    worker.client_timeout_s = settings.server.client_timeout
    worker.drain_s = settings.server.drain_duration
    worker.fast_path = settings.server.fast_path
    if settings.server.shutdown_mode == "vllm":
        worker.shutdown_timeout_s = settings.server.shutdown_timeout
    ranks.keep_listeners(worker, settings.server, os.environ)
    for listener in worker.sockets:  # connections inherit the size
        listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)


def post_worker_init(worker):
    """Start the application; the worker that this one succeeds may end."""
    gc.enable()
    # Reading the tokenizer leaves 3 MiB of freed memory.
    with suppress(AttributeError):  # a C library without malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    ranks.note_stage(worker, ranks.SERVING)
    if hasattr(worker.wsgi, "begin"):
        worker.wsgi.begin()


def worker_exit(server, worker):
    """End the application with its worker."""
    if hasattr(getattr(worker, "wsgi", None), "end"):
        worker.wsgi.end()


def pre_exec(server):
    """Remove exported settings: the new server that SIGUSR2 starts reads its own.

    As the first one did, it begins in the folder of its modules.
    """
    ignore_signals()
    if os.environ.get(FOLDER):
        server.START_CTX["cwd"] = os.path.dirname(__file__)
    for name in (ranks.SETTINGS, ranks.ENDPOINT):
        server.cfg.env_orig.pop(name, None)
