"""Requests that are lost while servers reload, are replaced and end under clients with kept
connections.

    python -m benchmarks.reloads                                  # all clients and cases, 1,000 requests each
    python -m benchmarks.reloads --clients aiohttp --cases HUP --requests 200
    python -m benchmarks.reloads --root ../base                   # another checkout

The cases, each repeated until the clients have sent all requests:

* HUP: a reload;
* USR2+TERM: a second server on the same port, then SIGTERM to the first one;
* TERM+nginx, TERM+haproxy: two servers behind a proxy are ended and started again in turns.

The Python clients run with .venv-clients (`make clients`) where that exists. Exit status 1 when a
request was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from benchmarks.report import show, show_machine
from benchmarks.servers import free_port

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
KEEPALIVE = ROOT / "benchmarks" / "keepalive"
CLIENTS_PYTHON = Path(os.environ.get("CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
LIBRARIES = ("aiohttp", "httpx", "openai", "node")
SIGNALED = ("HUP", "USR2+TERM")
PROXIED = ("TERM+nginx", "TERM+haproxy")
LIMIT_S = 60.0
"""Longest wait for a start or an end."""
CHECK_S = 0.02
BETWEEN_SIGNALS_S = 0.5
SETTINGS = {
    "SIM_HOST": HOST,
    "SIM_MODEL": "m",
    "SIM_TIME_TO_FIRST_TOKEN": "10ms",
    "SIM_INTER_TOKEN_LATENCY": "3ms",
}
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; user root;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    upstream servers {{
        server {host}:{first} max_fails=0;
        server {host}:{second} max_fails=0;
        keepalive 16;
    }}
    server {{
        listen {host}:{port};
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 5s
    option redispatch
frontend clients
    bind {host}:{port}
    stats uri /haproxy
    default_backend servers
backend servers
    balance roundrobin
    option httpchk GET /health/ready
    default-server check inter 200ms fall 1 rise 1
    server first {host}:{first}
    server second {host}:{second}
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the requests of one case.

    `signals`: how often a server reloaded, or was replaced.
    """

    library: str
    case: str
    answered: int
    lost: Mapping[str, int]
    signals: int

    @property
    def lost_count(self) -> int:
        return sum(self.lost.values())


class Server:
    """Understudy from the checkout `root`, on a port that may change its process."""

    def __init__(self, root: Path, port: int, log: Path) -> None:
        self.port = port
        self._root = root
        self._log = log
        self._process: subprocess.Popen[bytes] | Adopted
        self.start()

    def start(self) -> None:
        """Returns when the server is ready. TimeoutError when it is not in time."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SIM_")
        }
        environment |= {**SETTINGS, "SIM_PORT": str(self.port)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "wsgi:app"],
                cwd=self._root,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until_ready(self.port)

    def reload(self) -> None:
        """Sends SIGHUP, and returns when a new worker serves and the old one has got its signal."""
        old_workers = workers_of(self._process.pid)
        self._process.send_signal(signal.SIGHUP)
        wait_until(lambda: workers_of(self._process.pid).isdisjoint(old_workers))

    def replace(self) -> None:
        """Starts a second server with SIGUSR2, and ends the first with SIGTERM when the second has
        a worker.

        Its worker still loads the application then, and connections wait in the backlog.
        """
        old = self._process.pid
        old_arbiters = self._arbiters()
        self._process.send_signal(signal.SIGUSR2)
        wait_until(
            lambda: (
                len(self._arbiters() - old_arbiters) == 1
                and bool(workers_of(self._newest(old_arbiters)))
            )
        )
        new = self._newest(old_arbiters)
        promoted_count = self._promoted_count()
        os.kill(old, signal.SIGTERM)
        self._process.wait(LIMIT_S)
        self._process = Adopted(new)
        wait_until(lambda: self._promoted_count() > promoted_count)

    def _promoted_count(self) -> int:
        return self._log.read_text().count("Master has been promoted")

    def _arbiters(self) -> set[int]:
        return set(map(int, re.findall(r"Listening at: \S+ \((\d+)\)", self._log.read_text())))

    def _newest(self, old_arbiters: set[int]) -> int:
        [new] = self._arbiters() - old_arbiters
        return new

    def end(self) -> None:
        """Sends SIGTERM, and returns when the process has ended."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(LIMIT_S)


class Adopted:
    """A server process that is not a child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        """TimeoutError when the process has not ended after `timeout` seconds."""
        wait_until(lambda: not Path(f"/proc/{self.pid}").exists(), timeout)


def workers_of(pid: int) -> set[int]:
    """Returns the process ids of the children of an arbiter."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return set(map(int, children.read_text().split())) if children.exists() else set()


def is_ready(port: int) -> bool:
    """Asks a server on this machine whether it is ready."""
    try:
        return fetch(port, "/health/ready")[0] == 200
    except (OSError, HTTPException):
        return False


def servers_up(port: int) -> int:
    """Asks HAProxy how many servers it sends requests to."""
    _, rows = fetch(port, "/haproxy;csv")
    return sum(
        row.split(",")[1] in ("first", "second") and ",UP," in row for row in rows.splitlines()
    )


def fetch(port: int, path: str) -> tuple[int, str]:
    """Returns the status and body of an answer."""
    connection = HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait_until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(CHECK_S)


def wait_until_ready(port: int) -> None:
    """TimeoutError when the server does not become ready."""
    wait_until(lambda: is_ready(port))


@contextmanager
def client(
    library: str, url: str, connections: int, requests: int
) -> Iterator[subprocess.Popen[str]]:
    python = str(CLIENTS_PYTHON) if CLIENTS_PYTHON.exists() else sys.executable
    if library == "node":
        command = ["node", str(KEEPALIVE / "client.mjs")]
    else:
        command = [python, str(KEEPALIVE / "client.py"), library]
    command += [url, str(connections), str(requests)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def proxy(case: str, folder: Path, first: Server, second: Server) -> Iterator[int]:
    """Runs nginx or HAProxy in front of two servers; yields its port."""
    port = free_port()
    name = case.partition("+")[2]
    template = NGINX if name == "nginx" else HAPROXY
    file = folder / f"{name}.conf"
    file.write_text(
        template.format(host=HOST, port=port, first=first.port, second=second.port, folder=folder)
    )
    program = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        raise FileNotFoundError(name)
    command = (
        [program, "-c", str(file), "-e", "stderr"]
        if name == "nginx"
        else [program, "-f", str(file)]
    )
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(port)
        yield port
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def run_case(library: str, case: str, connections: int, requests: int, root: Path) -> Outcome:
    """Runs one client library through one case."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [Server(root, free_port(), folder / "first.log")]
        stack.callback(servers[0].end)
        port = servers[0].port
        if case in PROXIED:
            servers.append(Server(root, free_port(), folder / "second.log"))
            stack.callback(servers[1].end)
            port = stack.enter_context(proxy(case, folder, *servers))
        running = stack.enter_context(
            client(library, f"http://{HOST}:{port}", connections, requests)
        )
        signals = 0
        time.sleep(BETWEEN_SIGNALS_S)
        while running.poll() is None:
            server = servers[signals % len(servers)]
            if case == "HUP":
                server.reload()
            elif case == "USR2+TERM":
                server.replace()
            else:
                server.end()
                server.start()
                if case == "TERM+haproxy":  # which needs one server at any time
                    wait_until(lambda: servers_up(port) == len(servers))
            signals += 1
            time.sleep(BETWEEN_SIGNALS_S)
        assert running.stdout is not None
        report = json.loads(running.stdout.read())
    return Outcome(library, case, answered=report["answered"], lost=report["lost"], signals=signals)


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.reloads", description=__doc__)
    flags.add_argument(
        "--clients", default=",".join(LIBRARIES), help="libraries, of " + ", ".join(LIBRARIES)
    )
    cases = SIGNALED + PROXIED
    flags.add_argument("--cases", default=",".join(cases), help="cases, of " + ", ".join(cases))
    flags.add_argument(
        "--requests", type=int, default=1000, help="requests of each client and case"
    )
    flags.add_argument(
        "--connections", type=int, default=16, help="clients that ask at the same time"
    )
    flags.add_argument(
        "--root", type=Path, default=ROOT, help="the checkout whose server is measured"
    )
    options = flags.parse_args(argv)
    outcomes = []
    for case in options.cases.split(","):
        for library in options.clients.split(","):
            outcome = run_case(
                library,
                case,
                connections=options.connections,
                requests=options.requests,
                root=options.root,
            )
            outcomes.append(outcome)
            print(outcome, file=sys.stderr, flush=True)
    show_machine()
    show(
        f"Requests lost, of {options.requests} of {options.connections} clients",
        ("case", "client", "lost", "reloads or ends", "reasons"),
        [
            (
                outcome.case,
                outcome.library,
                str(outcome.lost_count),
                str(outcome.signals),
                ", ".join(f"{count} {reason}" for reason, count in outcome.lost.items()) or "–",
            )
            for outcome in outcomes
        ],
    )
    return 1 if any(outcome.lost_count for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
