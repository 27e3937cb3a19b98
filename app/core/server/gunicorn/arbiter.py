"""gunicorn's arbiter with one worker per rank, and with safe reloads: start with `take_over`.

Differences from the stock arbiter, which

* lets every worker serve all ports; here a rank has a separate port, and keeps the port after a
  crash;
* ends, or loses its workers, when a reload finds a configuration that cannot be served;
* ignores signals while it waits for the old workers to end, and kills slow ones;
* closes the old workers' listeners before the new workers have started;
* starts new workers for every SIGHUP, however many are starting (`reloads.py`);
* ends with all its workers if a signal leads to an error, such as a missing folder for log files;
* cannot start a successor (SIGUSR2) after a start by `python -m`.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from gunicorn import systemd
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.util import parse_address
from msgspec import Struct
from msgspec.structs import replace

from app.core.server.gunicorn import ranks
from app.core.server.gunicorn.early_signals import HeldSignals
from app.core.server.gunicorn.errors import CertificateError
from app.core.server.gunicorn.reloads import ReloadQueue
from config import ConfigError, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from types import FrameType

    from gunicorn.app.core.base import BaseApplication
    from gunicorn.config import Config
    from gunicorn.glogging import Logger
    from gunicorn.pidfile import Pidfile
    from gunicorn.workers.base import Worker

    from app.core.server.gunicorn.certificates import SelfSigned, ServerCertificate
    from config.settings import ServerSettings

FIRST_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that end the server: before all others that have arrived, which no longer matter."""
RETRY_S = 1.0
"""Shortest time until the successor of a worker that could not start, in seconds."""
MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux: `sun_path` has 108 bytes with the final zero."""


class EngineProcess(Protocol):
    """The process of a real engine, across restarts."""

    options: Any
    """See `Extension.engine_process`."""
    timeout_s: float
    """Longest time without a heartbeat, or 0 for no limit."""

    def begin(self, environ: MutableMapping[str, str]) -> None:
        """Starts the process and loads its model.

        Raises:
            ConfigError: The start fails.
        """

    def sizes(self) -> Mapping[str, object]:
        """Returns the settings, by name, that the engine has found; empty before it is ready."""

    def supervise(self) -> None:
        """Restarts the process if it has ended or hangs."""

    def end(self) -> None:
        """Ends the process."""


class ServerChecks(Struct, frozen=True):
    """Checks whether settings can be served: each raises an error if not.

    Attributes:
        load: Reads the settings of a reload; its argument gets warnings.
        prepare: Fetches and checks the files that the settings name. Called once at the start,
            before the ranks need the same files, and before every reload.
        create: Builds the application, to try out the settings of a reload; may raise SystemExit.
        engine_options: Returns the options of a real engine's process.
        new_engine_process: Returns a real engine's process, which is not started yet.
    """

    load: Callable[[Callable[[str], None]], Settings]
    prepare: Callable[[Settings], None]
    create: Callable[[Settings], object]
    engine_options: Callable[[Settings], Any]
    new_engine_process: Callable[[Settings, Logger], EngineProcess]


class RankArbiter(Arbiter):  # type: ignore[misc]
    """An arbiter that keeps one worker per rank; `take_over` starts one for a stock arbiter."""

    WORKERS: dict[int, Worker]
    cfg: Config
    pid: int
    pidfile: Pidfile | None
    engine: EngineProcess | None = None
    """None without a real model."""
    certificate: ServerCertificate | None = None
    """Inherited by each forked worker."""
    self_signed: SelfSigned | None = None

    def __init__(self, app: BaseApplication, settings: Settings, checks: ServerChecks) -> None:
        """Loads the certificate, and starts a real engine.

        Raises:
            ConfigError, CertificateError, OSError: the settings cannot be served.
        """
        self.settings = settings
        """The settings in force."""
        self.checks = checks
        self._queued_signals: set[int] = set()
        """Signals that have arrived, and are not handled yet: each is queued once."""
        self._has_served = False
        """True when all ranks have served: the settings were good."""
        self._failed_start_s: float | None = None
        """Time of the last failed start of a worker (monotonic seconds)."""
        self._pidfile_path: str | None = None
        super().__init__(app)
        self.reloads = ReloadQueue(self.log, size=self.num_workers, clock=time.monotonic)
        # The command that SIGUSR2 starts. After `python -m gunicorn`, gunicorn's own guess names a
        # file of its package; its folder then precedes the standard library, and its `http` hides
        # Python's.
        self.START_CTX["args"] = [sys.executable, *sys.orig_argv[1:]]
        self.load_certificate()
        self.start_engine()

    def init_signals(self) -> None:
        """Installs the handlers of signals, and queues those that arrived during the start."""
        held = signal.getsignal(signal.SIGHUP)
        super().init_signals()
        if isinstance(held, HeldSignals):
            for number in held.numbers:
                self.signal(number, None)

    def signal(self, sig: int, frame: FrameType | None) -> None:
        """Queues a signal, unless it is queued already: a storm must not delay others."""
        if sig not in self._queued_signals:
            self._queued_signals.add(sig)
            super().signal(sig, frame)

    signal_chld = signal

    def wait_for_signals(self, timeout: float = 1.0) -> list[int]:
        """Returns the signals that have arrived, those that end the server first."""
        signals = super().wait_for_signals(timeout)
        self._queued_signals.difference_update(signals)
        return sorted(signals, key=lambda number: number not in FIRST_SIGNALS)

    def manage_workers(self) -> None:
        """Keeps one worker per rank; after a reload, ends old workers whose successors serve."""
        replaced = {
            pid: worker
            for pid, worker in self.WORKERS.items()
            if ranks.has_stage(worker, ranks.REPLACED)
        }
        self._hide(replaced)
        super().manage_workers()
        ready_places = {
            worker.place
            for worker in self.WORKERS.values()
            if ranks.has_stage(worker, ranks.SERVING)
        }
        if len(ready_places) == len(self.settings.server.ranks):
            self._has_served = True
        self.WORKERS.update(replaced)
        for pid, worker in replaced.items():
            # One that does not serve yet has no clients.
            if worker.place in ready_places or not ranks.has_stage(worker, ranks.SERVING):
                self.kill_worker(pid, signal.SIGTERM)
        if self.engine is not None:
            self.engine.supervise()
        if self.certificate is not None:
            try:
                if self.certificate.refresh():
                    self.log.info("new connections use the updated certificate")
            except CertificateError as error:
                self.log.error("%s; the old certificate remains in use", error)
        if self.reloads.take(self.WORKERS.values(), self.cfg.graceful_timeout):
            self._begin_reload()

    @property
    def _is_child(self) -> bool:
        """True in a forked process: the exit of a worker passes through the arbiter's frames."""
        return os.getpid() != self.pid

    def spawn_worker(self) -> int:
        """Starts a worker; returns its process id, or 0 if it cannot be started now.

        `manage_workers` then tries again.
        """
        now_s = time.monotonic()
        if self._failed_start_s is not None and now_s - self._failed_start_s < RETRY_S:
            return 0
        try:
            pid: int = super().spawn_worker()
        except OSError as error:  # no memory, process or file
            if self._is_child:
                raise
            self._failed_start_s = now_s
            self.log.error("cannot start a worker: %s", error)
            return 0
        return pid

    def reap_workers(self) -> None:
        """Notes ended workers.

        Raises:
            HaltServer: a worker of the first start cannot serve the settings.
        """
        is_done = False
        while not is_done:
            try:
                super().reap_workers()
                is_done = True
            except HaltServer:
                if not self._has_served:
                    raise
                # A reload has checked the settings, but a file that they name has changed since.
                self._failed_start_s = time.monotonic()
                self.log.error("a new worker cannot serve the settings; trying again")

    def _hide(self, workers: dict[int, Worker]) -> None:
        """Hides `workers` from gunicorn's code, which neither counts nor ends them."""
        self.WORKERS = {pid: worker for pid, worker in self.WORKERS.items() if pid not in workers}

    def handle_hup(self) -> None:
        """Requests a reload, which `manage_workers` begins when no other one runs."""
        self.reloads.request()

    def _begin_reload(self) -> None:
        """Reloads, unless the new settings cannot be served."""
        earlier = self.settings
        earlier_config = self.cfg
        try:
            settings = self._read_settings()
            ranks.export_settings(settings, os.environ)
            self.settings = settings
            # `-c python:NAME`: gunicorn imports the module again, and would get the old settings.
            sys.modules.pop(self.cfg.config.removeprefix("python:"), None)
            super().handle_hup()
        except (Exception, SystemExit) as error:
            if self._is_child:
                raise
            self.settings = earlier
            self.cfg = earlier_config
            self.app.cfg = earlier_config
            ranks.export_settings(earlier, os.environ)
            reason = " ".join(str(error).split()).removeprefix("error: ")
            if isinstance(error, SystemExit) and isinstance(error.code, int):
                reason = "gunicorn's configuration cannot be read"  # gunicorn has printed the error
            self.log.error("reload rejected; keeping the old configuration: %s", reason)
            return
        if self.engine is not None:
            self.engine.timeout_s = settings.engine.engine_timeout

    def handle_usr2(self) -> None:
        """Starts a successor, unless there is one."""
        try:
            super().handle_usr2()
        except Exception as error:
            self.log.error("cannot start a successor: %s", error)
            if self._is_child:
                # The child has the list of all workers, and would end them with itself.
                os._exit(1)

    def handle_ttin(self) -> None:
        """Refuses to change the number of workers."""
        self.log.error(
            "the number of workers must be %d, one for each rank: %s",
            len(self.settings.server.ranks),
            ranks.ONE_WORKER_PER_RANK,
        )

    handle_ttou = handle_ttin

    def setup(self, app: BaseApplication) -> None:
        """Applies gunicorn's configuration at the start and at a reload."""
        is_reload = self.log is not None
        super().setup(app)
        self.num_workers = len(self.settings.server.ranks)
        self.cfg.set("workers", self.num_workers)
        if is_reload:
            if self.master_pid:
                # gunicorn would create the file, which the parent of this server still has.
                self._pidfile_path = self.cfg.pidfile
                self.cfg.set("pidfile", None)
            # `_read_settings` has just checked the certificate. If it is broken now, the old one
            # stays in use.
            with suppress(CertificateError, OSError):
                self.load_certificate()

    def reload(self) -> None:
        """Starts new workers; `manage_workers` ends the old ones once their successors serve.

        Raises:
            Exception, SystemExit: gunicorn's configuration cannot be read; no worker was started,
                and the old ones continue.
        """
        replaced = dict(self.WORKERS)
        first_age = self.worker_age
        newly_replaced = []
        for worker in replaced.values():
            if not ranks.has_stage(worker, ranks.REPLACED):
                ranks.note_stage(worker, ranks.REPLACED)
                newly_replaced.append(worker)
        self._hide(replaced)
        pidfile = self.pidfile
        self._pidfile_path = self.cfg.pidfile
        if self.master_pid:
            self.pidfile = None
        try:
            super().reload()
            self.reloads.note_running(self.worker_age)
        except (Exception, SystemExit):
            if self.worker_age == first_age and not self._is_child:
                for worker in newly_replaced:
                    ranks.note_stage(worker, ranks.REPLACED, holds=False)
            raise
        finally:
            if self.master_pid:
                self.pidfile = pidfile
                self.cfg.set("pidfile", self._pidfile_path)
            self.WORKERS.update(replaced)

    def handle_winch(self) -> None:
        """Ends the workers of a daemon, but keeps its listeners open.

        New connections wait, or go to the child that SIGUSR2 has started.
        """
        if self.cfg.daemon:
            self.reloads.cancel()
            for worker in self.WORKERS.values():
                ranks.note_stage(worker, ranks.HANDED_OVER)
        super().handle_winch()

    def stop(self, graceful: bool = True) -> None:
        """Ends all workers, replaced ones included, within `graceful_timeout`."""
        # Another process may keep the listeners open: the parent of this server, the child that
        # SIGUSR2 has started, or systemd.
        has_parent = self.master_pid != 0 and self.master_pid == os.getppid()
        is_handed_over = has_parent or self.reexec_pid != 0 or self.systemd
        for worker in self.WORKERS.values():
            if is_handed_over:
                ranks.note_stage(worker, ranks.HANDED_OVER)
            ranks.note_stage(worker, ranks.ENDING)
        super().stop(graceful)
        if self.engine is not None:
            self.engine.end()

    def load_certificate(self) -> None:
        """Loads the certificate that the settings or gunicorn's options name.

        Raises:
            CertificateError: the certificate cannot be served.
        """
        tls = self.settings.tls
        certfile = tls.ssl_certfile
        keyfile = tls.ssl_keyfile
        if tls.self_signed_certs:
            from app.core.server.gunicorn.certificates import SelfSigned

            self.self_signed = self.self_signed or SelfSigned()
            certfile, keyfile = self.self_signed.pair(
                self.settings.server, self.settings.access.named_hosts
            )
            self.log.info("self-signed certificate: %s", certfile)
        if certfile:
            self.cfg.set("certfile", certfile)
            self.cfg.set("keyfile", keyfile)
        self.certificate = None
        if self.cfg.is_ssl:
            from app.core.server.gunicorn.certificates import ServerCertificate

            self.certificate = ServerCertificate(self.cfg)

    def _read_settings(self) -> Settings:
        """Reads and checks the settings of a reload.

        Raises:
            Exception, SystemExit: the settings cannot be served.
        """
        settings = self.checks.load(self.log.warning)
        server = ranks.with_address(settings.server, self.cfg.address)
        settings = replace(settings, server=server)
        if ranks.addresses(settings.server) != ranks.addresses(self.settings.server):
            raise ConfigError(
                "the host, ports, and number of ranks cannot be changed while the server is running"
            )
        if self.cfg.preload_app and settings.dump(masked=False) != self.settings.dump(masked=False):
            raise ConfigError(
                "with preload_app, settings cannot be changed while the server is running"
            )
        if settings.tls.ssl_certfile:
            from app.core.server.gunicorn.certificates import check_pair

            check_pair(settings.tls.ssl_certfile, settings.tls.ssl_keyfile)
        if settings.engine.is_real != self.settings.engine.is_real:
            raise ConfigError("the engine setting cannot be changed while the server is running")
        if self.engine is not None:
            if self.checks.engine_options(settings) != self.engine.options:
                raise ConfigError(
                    "the llm engine's model and limits cannot be changed while the server is "
                    "running"
                )
            settings = settings.changed(self.engine.sizes())
        self.checks.prepare(settings)
        self.checks.create(settings)
        return settings

    def start_engine(self) -> None:
        """Starts a real engine, and adds the sizes that it reports to the settings.

        Raises:
            ConfigError: the model cannot be loaded.
        """
        if not self.settings.engine.is_real:
            return
        self.engine = self.checks.new_engine_process(self.settings, self.log)
        self.engine.begin(os.environ)
        self.settings = self.settings.changed(self.engine.sizes())
        ranks.export_settings(self.settings, os.environ)


def take_over(server: Arbiter, settings: Settings, checks: ServerChecks) -> RankArbiter:
    """Returns the arbiter that serves in place of a stock arbiter, which is starting.

    gunicorn has no setting for the arbiter's class, and the first hook that it calls gets an
    arbiter that is already starting. The hook runs the returned arbiter until the server ends.

    Raises:
        ConfigError, CertificateError, OSError, or an error of `checks`: the settings cannot be
            served.
    """
    address = ranks.with_address(settings.server, server.cfg.address)
    settings = replace(settings, server=address)
    ranks.export_settings(settings, os.environ)
    check_address_is_free(server)
    check_options(server, settings.server)
    if settings.engine.is_real:
        checks.engine_options(settings)  # raises for missing requirements, before slow work
    checks.prepare(settings)
    size = len(settings.server.ranks)
    if server.cfg.workers != size:
        serving = f"{size} workers serve, one for each rank"
        if size == 1:
            serving = "one worker serves"
        server.log.warning(
            "workers=%d: %s: %s", server.cfg.workers, serving, ranks.ONE_WORKER_PER_RANK
        )
    if server.pidfile is not None:
        server.pidfile.unlink()  # the returned arbiter writes it
    return RankArbiter(server.app, settings, checks)


def check_options(arbiter: Arbiter, server: ServerSettings) -> None:
    """Checks that gunicorn's options fit the ranks and addresses of the settings.

    Raises:
        ConfigError: an option does not fit.
    """
    size = len(server.ranks)
    addresses = ranks.addresses(server)
    if size > 1 and arbiter.cfg.preload_app:
        raise ConfigError(
            "preload_app must be off with several ranks, because each rank has its own application"
        )
    parsed_addresses = [parse_address(address) for address in addresses]
    if len(addresses) > 1 and arbiter.cfg.address != parsed_addresses:
        raise ConfigError(
            "bind: cannot be set to several addresses; use the host, port, and grpc-port settings"
        )
    if server.uds is not None and (size > 1 or server.grpc_port is not None):
        raise ConfigError(
            "bind: a Unix socket serves only one rank and cannot be combined with grpc-port"
        )


def check_address_is_free(server: Arbiter) -> None:
    """Checks that the server can listen; gunicorn itself would retry for five seconds.

    Raises:
        ConfigError: an address is in use or not valid.
    """
    # `server.systemd` is set only later, when the arbiter takes the sockets.
    has_sockets = server.master_pid or systemd.listen_fds(unset_environment=False)
    if has_sockets or server.cfg.reuse_port:
        return
    for address in server.cfg.address:
        if isinstance(address, str):
            check_socket_file(address)
        if isinstance(address, tuple):
            check_port(address)


def check_port(address: tuple[str, int]) -> None:
    """Checks that the TCP port is free.

    Raises:
        ConfigError: the server cannot listen there.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                reason += "; choose another port with --port or SIM_PORT"
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from None


def check_socket_file(path: str) -> None:
    """Checks that gunicorn can create a Unix socket at `path`, where it replaces a stale one.

    Raises:
        ConfigError: the server cannot listen there.
    """
    folder = os.path.dirname(path) or "."
    reason = ""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        reason = f"the path must have at most {MAX_SOCKET_PATH_BYTES} bytes"
    elif not os.path.isdir(folder):
        reason = "its folder does not exist"
    elif not os.access(folder, os.W_OK):
        reason = "its folder is not writable"
    elif os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        reason = "the file exists and is not a socket"
    else:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):  # refused by a stale socket
            probe.connect(path)
            reason = "Address already in use"
    if reason:
        raise ConfigError(f"cannot listen on unix:{path}: {reason}")
