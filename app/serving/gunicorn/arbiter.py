"""gunicorn's arbiter with one worker per rank, and with reloads that neither cut a stream nor end
the server.

Differences from the stock arbiter, which

* lets every worker serve all ports; here a rank has a separate port, and keeps the port after a
  crash;
* ends, or loses its workers, when a reload finds a configuration that cannot be served;
* ignores signals while it waits for the old workers to end, and kills slow ones;
* closes the old workers' listeners before the new workers have started;
* cannot start a successor (SIGUSR2) after a start by `python -m`.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gunicorn import systemd
from gunicorn.arbiter import Arbiter
from gunicorn.util import parse_address

from app.serving.gunicorn import ranks
from app.serving.gunicorn.certificates import (
    CertificateError,
    SelfSigned,
    ServerCertificate,
    check_pair,
)
from config import ConfigError, Settings
from config.kinds import format_duration
from config.loader import load

if TYPE_CHECKING:
    from gunicorn.app.base import BaseApplication
    from gunicorn.glogging import Logger
    from gunicorn.workers.base import Worker

    from app.engine.core.wire import EngineProcessOptions
    from app.serving.gunicorn.engine_process import EngineProcess

MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux: `sun_path` has 108 bytes with the final zero."""


class RankArbiter(Arbiter):  # type: ignore[misc]
    """The class that `take_charge` gives a stock arbiter. `settings`: the settings in force."""

    WORKERS: dict[int, Worker]
    settings: Settings
    prepare: Callable[[Settings], None]
    """Fetches and checks files that the settings name; raises when they cannot be used."""
    create: Callable[[Settings], object]
    """Builds the application; raises, SystemExit too, when the settings cannot be served."""
    engine_options: Callable[[Settings], EngineProcessOptions]
    """Returns the options of a real engine's process; raises when the engine could not run."""
    engine: EngineProcess | None = None
    """None without a real model."""
    certificate: ServerCertificate | None = None
    """Inherited by each forked worker."""
    self_signed: SelfSigned | None = None

    def manage_workers(self) -> None:
        """Keeps one worker per rank; after a reload, ends old workers whose successors serve."""
        replaced = self._hide(lambda worker: ranks.is_noted(worker, ranks.REPLACED))
        super().manage_workers()
        ready = {
            worker.place
            for worker in self.WORKERS.values()
            if ranks.is_noted(worker, ranks.SERVING)
        }
        self.WORKERS.update(replaced)
        for pid, worker in replaced.items():
            if worker.place in ready:
                self.kill_worker(pid, signal.SIGTERM)
        if self.engine is not None:
            self.engine.look()
        if self.certificate is not None:
            try:
                if self.certificate.refresh():
                    self.log.info("new connections get the new certificate")
            except CertificateError as error:
                self.log.error("%s; the certificate of before stays", error)

    def _hide(self, hidden: Callable[[Worker], bool]) -> dict[int, Worker]:
        found = {pid: worker for pid, worker in self.WORKERS.items() if hidden(worker)}
        self.WORKERS = {pid: worker for pid, worker in self.WORKERS.items() if pid not in found}
        return found

    def handle_hup(self) -> None:
        try:
            settings = self._asked()
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split()).removeprefix("error: ")
            self.log.error("reload refused, everything stays as it is: %s", reason)
            return
        ranks.hand_over(settings, os.environ)
        self.settings = settings
        if self.engine is not None:
            self.engine.timeout_s = settings.engine.engine_timeout
        # `-c python:NAME`: gunicorn imports the module again, and would get the old settings.
        sys.modules.pop(self.cfg.config.removeprefix("python:"), None)
        super().handle_hup()

    def handle_ttin(self) -> None:
        self.log.error(
            "workers: must be %d, one for each rank: %s", self.num_workers, ranks.ONE_EACH
        )

    handle_ttou = handle_ttin

    def setup(self, app: BaseApplication) -> None:
        super().setup(app)
        self.num_workers = len(self.settings.server.ranks)
        self.cfg.set("workers", self.num_workers)
        # `_asked` has just checked the certificate. If it is broken now, the old one stays in use.
        with suppress(CertificateError, OSError):
            self.secure()

    def reload(self) -> None:
        replaced = self._hide(lambda worker: True)
        for worker in replaced.values():
            ranks.note(worker, ranks.REPLACED)
        try:
            super().reload()
        finally:
            self.WORKERS.update(replaced)

    def handle_winch(self) -> None:
        """Ends the workers of a daemon, but keeps its listeners open.

        New connections wait, or go to the child that SIGUSR2 has started.
        """
        if self.cfg.daemon:
            for worker in self.WORKERS.values():
                ranks.note(worker, ranks.HANDED_OVER)
        super().handle_winch()

    @property
    def _shares_listeners(self) -> bool:
        """True while another process keeps the listeners open.

        It is the child that SIGUSR2 has started, the parent of this server, or systemd.
        """
        has_parent = self.master_pid != 0 and self.master_pid == os.getppid()
        has_child = self.reexec_pid != 0
        return bool(has_parent or has_child or self.systemd)

    def stop(self, graceful: bool = True) -> None:
        """Ends all workers, replaced ones included, within `graceful_timeout`."""
        for worker in self.WORKERS.values():
            if self._shares_listeners:
                ranks.note(worker, ranks.HANDED_OVER)
            ranks.note(worker, ranks.ENDING)
        super().stop(graceful)
        if self.engine is not None:
            self.engine.end()

    def secure(self) -> None:
        """Loads the certificate of the settings or gunicorn's options. Raises CertificateError."""
        tls = self.settings.tls
        certfile, keyfile = tls.ssl_certfile, tls.ssl_keyfile
        if tls.self_signed_certs:
            self.self_signed = self.self_signed or SelfSigned()
            certfile, keyfile = self.self_signed.pair(self.settings)
            self.log.info("self-signed certificate: %s", certfile)
        if certfile:
            self.cfg.set("certfile", certfile)
            self.cfg.set("keyfile", keyfile)
        self.certificate = ServerCertificate(self.cfg) if self.cfg.is_ssl else None

    def _asked(self) -> Settings:
        """Reads the settings anew.

        Raises any exception, or SystemExit, when they cannot be served.
        """
        asked = ranks.bound(load((), os.environ, warn=self.log.warning), self.cfg.address)
        if ranks.addresses(asked.server) != ranks.addresses(self.settings.server):
            raise ConfigError(
                "host, ports and the number of ranks cannot change while the server runs"
            )
        if self.cfg.preload_app and asked.dump(masked=False) != self.settings.dump(masked=False):
            raise ConfigError("with preload_app, settings cannot change while the server runs")
        if asked.tls.ssl_certfile:
            check_pair(asked.tls.ssl_certfile, asked.tls.ssl_keyfile)
        if asked.engine.is_real != self.settings.engine.is_real:
            raise ConfigError("setting engine: cannot change while the server runs")
        if self.engine is not None:
            if self.engine_options(asked) != self.engine.options:
                raise ConfigError(
                    "model and limits of engine llm cannot change while the server runs"
                )
            asked = self.engine.completed(asked)
        self.prepare(asked)
        self.create(asked)
        return asked

    def start_engine(self) -> None:
        """Starts a real engine and loads its model; `settings` then have the sizes that the engine
        found.

        Raises ConfigError when the model cannot be loaded.
        """
        if not self.settings.engine.is_real:
            return
        from app.serving.gunicorn.engine_process import EngineProcess  # imports msgpack

        self.engine = EngineProcess(
            self.engine_options(self.settings), self.log, self.settings.engine.engine_timeout
        )
        self.engine.begin(os.environ)
        self.settings = self.engine.completed(self.settings)
        ranks.hand_over(self.settings, os.environ)


def take_charge(
    server: Arbiter,
    settings: Settings,
    prepare: Callable[[Settings], None],
    create: Callable[[Settings], object],
    engine_options: Callable[[Settings], EngineProcessOptions],
) -> None:
    """Turns a starting stock arbiter into a `RankArbiter`: gunicorn has no setting for the
    arbiter's class.

    `prepare` is called once at the start, before the ranks need the same files, and before every
    reload; `create` tries out the settings of a reload. Raises ConfigError, CertificateError,
    OSError or an error of `prepare` when the settings cannot be served.
    """
    settings = ranks.bound(settings, server.cfg.address)
    ranks.hand_over(settings, os.environ)
    check_free(server)
    size, addresses = len(settings.server.ranks), ranks.addresses(settings.server)
    if size > 1 and server.cfg.preload_app:
        raise ConfigError(
            "preload_app: must be off with several ranks: each has an application of its own"
        )
    if len(addresses) > 1 and server.cfg.address != [parse_address(one) for one in addresses]:
        raise ConfigError(
            "bind: must be left to the settings host, port and grpc-port when there are several"
        )
    if settings.server.uds is not None and (size > 1 or settings.server.grpc_port is not None):
        raise ConfigError("bind: a Unix socket serves one rank, and goes without grpc-port")
    if settings.engine.is_real:
        engine_options(settings)  # raises for missing requirements, before slow work
    prepare(settings)
    server.__class__ = RankArbiter
    # The command that SIGUSR2 starts. After `python -m gunicorn`, gunicorn's own guess names a file
    # of its package; its folder then precedes the standard library, and its `http` hides Python's.
    server.START_CTX["args"] = [sys.executable, *sys.orig_argv[1:]]
    server.settings, server.prepare, server.create = settings, prepare, create
    server.engine_options, server.num_workers = engine_options, size
    if server.cfg.workers != size:
        serving = "one worker serves" if size == 1 else f"{size} workers serve, one for each rank"
        server.log.warning("workers=%d: %s: %s", server.cfg.workers, serving, ranks.ONE_EACH)
        server.cfg.set("workers", size)
    server.secure()
    server.start_engine()


def check_free(server: Arbiter) -> None:
    """Raises ConfigError for an address in use: gunicorn itself would retry for five seconds."""
    # `server.systemd` is set only later, when the arbiter takes the sockets.
    has_sockets = server.master_pid or systemd.listen_fds(unset_environment=False)
    if has_sockets or server.cfg.reuse_port:
        return
    for address in server.cfg.address:
        if isinstance(address, str):
            check_socket_file(address)
        if isinstance(address, tuple):
            with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(address)
                except OSError as error:
                    reason = error.strerror or str(error)
                    if error.errno == errno.EADDRINUSE:
                        reason += "; choose another port with --port or SIM_PORT"
                    raise ConfigError(
                        f"cannot listen at {address[0]}:{address[1]}: {reason}"
                    ) from None


def check_socket_file(path: str) -> None:
    """Raises ConfigError unless a Unix socket can be made at `path`, where gunicorn replaces a
    stale one.
    """
    reason = ""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        reason = f"the path must have at most {MAX_SOCKET_PATH_BYTES} bytes"
    elif not os.path.isdir(os.path.dirname(path) or "."):
        reason = "its folder does not exist"
    elif not os.access(os.path.dirname(path) or ".", os.W_OK):
        reason = "its folder is not writable"
    elif os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        reason = "the file exists and is not a socket"
    else:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):  # refused by a stale socket
            probe.connect(path)
            reason = "Address already in use"
    if reason:
        raise ConfigError(f"cannot listen at unix:{path}: {reason}")


def say_model(log: Logger, settings: Settings) -> None:
    """Logs the model and its timing; at level debug, all settings, too."""
    latency = settings.latency
    first, next = (
        format_duration(latency.time_to_first_token),
        format_duration(latency.inter_token_latency),
    )
    timing = f"first token after {first}, each next after {next}"
    if settings.engine.is_real:
        timing = "a real engine's"
    elif settings.steps.shared:
        timing = f"steps of profile {settings.steps.profile}"
    log.info("model: %s; timing: %s", ", ".join(settings.model.served_names), timing)
    log.debug("settings: %s", json.dumps(settings.dump()))


def say_console(log: Logger, settings: Settings) -> None:
    path = settings.server.root_path.rstrip("/") + "/console"
    urls = ", ".join(url + path for _, url in ranks.siblings(settings))
    if settings.server.uds is not None:
        urls = f"{path} at unix:{settings.server.uds}"
    log.info("console: %s", urls if settings.api.console else "none; --console serves one")
