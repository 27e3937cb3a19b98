"""The application under each server that speaks WSGI, started as its users start it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.needs import APACHE, SERVERS_BIN
from tests.other_workers import BARE, OURS
from tests.running_server import ROOT, RunningServer, free_port, running_command

THREADS = 64
"""More than the fifty clients of the matrix, and so few that each row starts quickly."""
Command = Callable[[int, Path], list[str]]
"""Makes the command of a server that listens on a port; files of its own go into a folder."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the matrix.

    `reload` is the signal that its operators send; None where there is none.
    """

    command: Command
    need: str | None = None
    """The marker of what it needs (tests/needs.py)."""
    reload: signal.Signals | None = signal.SIGHUP
    serves_at_once: int = 50
    sees_leaving: bool = True
    """A client that leaves is noticed while nothing is written."""
    breaks: bool = True
    """A stream that breaks off ends broken for its client."""


def gunicorn(configuration: str, *arguments: str) -> Command:
    def command(port: int, folder: Path) -> list[str]:
        (folder / "gunicorn.conf.py").write_text(configuration)
        return [
            sys.executable,
            "-m",
            "gunicorn",
            "-c",
            f"{folder}/gunicorn.conf.py",
            *arguments,
            "wsgi:app",
        ]

    return command


def uwsgi(*arguments: str) -> Command:
    def command(port: int, folder: Path) -> list[str]:
        where = ("--http-socket", f"127.0.0.1:{port}", "--wsgi-file", "wsgi.py")
        return [
            str(SERVERS_BIN / "uwsgi"),
            *where,
            "--master",
            "--need-app",
            "--die-on-term",
            *arguments,
        ]

    return command


def waitress(port: int, folder: Path) -> list[str]:
    program = str(SERVERS_BIN / "waitress-serve")
    return [program, f"--listen=127.0.0.1:{port}", f"--threads={THREADS}", "wsgi:app"]


APACHE_HEAD = """
ServerRoot {folder}
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/apache.pid
DefaultRuntimeDir {folder}
ErrorLog /dev/stderr
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
"""
APACHE_CONFIGURATION = """
{load}
# One process: each would be a server of its own.
StartServers 1
ServerLimit 1
ThreadLimit {threads}
ThreadsPerChild {threads}
MaxRequestWorkers {threads}
{daemon}
# gevent cannot be loaded into a second interpreter of a process.
WSGIApplicationGroup %{{GLOBAL}}
WSGIScriptAlias / {root}/wsgi.py
<Directory {root}>
    Require all granted
</Directory>
"""
DAEMON = (
    "WSGISocketPrefix {folder}/wsgi\n"
    "WSGIDaemonProcess understudy processes=1 threads={threads} python-path={root}\n"
    "WSGIProcessGroup understudy"
)
EMBEDDED = "WSGIPythonPath {root}"


def as_somebody(command: list[str]) -> list[str]:
    """`command` under another name:

    as root Apache and nginx become users who cannot read this folder.
    """
    return (
        ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]
        if os.getuid() == 0
        else command
    )


def mod_wsgi(daemon: str) -> Command:
    def command(port: int, folder: Path) -> list[str]:
        assert APACHE is not None
        module_config = [str(SERVERS_BIN / "mod_wsgi-express"), "module-config"]
        load = subprocess.run(module_config, check=True, capture_output=True, text=True).stdout
        names = {"folder": folder, "port": port, "root": ROOT, "threads": THREADS, "load": load}
        names["modules"] = os.environ.get("APACHE_MODULES", "/usr/lib/apache2/modules")
        text = (APACHE_HEAD + APACHE_CONFIGURATION).format(daemon=daemon.format(**names), **names)
        (folder / "httpd.conf").write_text(text)
        return as_somebody([APACHE, "-f", str(folder / "httpd.conf"), "-DFOREGROUND"])

    return command


KINDS = {
    "our worker": Kind(gunicorn(OURS)),
    "Gunicorn gevent": Kind(gunicorn(BARE, "-k", "gevent")),
    "Gunicorn gthread": Kind(gunicorn(BARE, "-k", "gthread", "--threads", str(THREADS))),
    "Gunicorn sync": Kind(gunicorn(BARE, "-k", "sync"), serves_at_once=1),
    "uWSGI": Kind(uwsgi(), "uwsgi", serves_at_once=1),
    "uWSGI threads": Kind(uwsgi("--threads", str(THREADS), "--enable-threads"), "uwsgi"),
    "uWSGI gevent": Kind(uwsgi("--gevent", "100"), "uwsgi"),
    "waitress": Kind(waitress, "waitress", reload=None),
    "mod_wsgi embedded": Kind(
        mod_wsgi(EMBEDDED), "mod_wsgi", reload=signal.SIGUSR1, sees_leaving=False
    ),
    "mod_wsgi daemon": Kind(
        mod_wsgi(DAEMON), "mod_wsgi", reload=signal.SIGUSR1, sees_leaving=False, breaks=False
    ),
}


@contextmanager
def served(kind: str, folder: Path, settings: Mapping[str, str]) -> Iterator[RunningServer]:
    port = free_port()
    # pyuwsgi begins a reload with the interpreter that its environment was made of.
    packages = next(SERVERS_BIN.parent.glob("lib/python*/site-packages"), None)
    path = f"{ROOT}:{packages}" if KINDS[kind].need else str(ROOT)
    env = {"SIM_PORT": str(port), "PYTHONPATH": path, **settings}
    with running_command(KINDS[kind].command(port, folder), port, env) as server:
        yield server
