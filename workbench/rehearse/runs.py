"""A run of the client against a server of one version. Start at `Rehearsal`.

A proxy records the requests and the answers. The journal of the stand-in has the fields of the
requests that its version ignores.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

import gevent
from msgspec import Struct

from app.extensions.recording.drift import sent_parts
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.lines import recorded
from app.extensions.recording.proxy import RecordingProxy
from app.extensions.recording.recorder import Upstream
from app.extensions.recording.targets import targets_by_model
from app.extensions.recording.writer import RecordingFile
from app.shared.http_client import Target, whole_response
from app.shared.relay import READ_TIMEOUT_S, server_of
from config.declaration import UsageError
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.fleet.fleet import MODULE
from workbench.fleet.isolation import Isolation
from workbench.fleet.processes import HOST, FleetError, Processes, ServerProcess
from workbench.judge.served import ServedRequest, journal_entries
from workbench.rehearse.junit import (
    SUFFIX,
    CaseResult,
    file_states,
    read_results,
    result_files,
)
from workbench.rehearse.traffic import pairing_of

JOURNAL_ENTRIES = 100_000
SEED = 1
POLL_S = 0.02
STOP_S = 5.0
TAIL_BYTES = 8_192
SHOWN_BYTES = 1 << 16
"""Size of a part of the command's output that is copied at once."""
BASE_URLS = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables with the URL of the server that ends with /v1."""
WITHOUT_PROXY = ("NO_PROXY", "no_proxy")
"""Variables with the hosts that clients ask without a proxy."""
ROOT_URLS = ("ANTHROPIC_BASE_URL", "UNDERSTUDY_URL")
"""Variables with the URL of the server."""
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
"""Variables that clients need, with any value."""
NO_KEY = "none"
PYTEST_OPTIONS = "PYTEST_ADDOPTS"
"""Variable with options of pytest; other commands ignore it."""
NO_RESULTS = "no:junitxml"
"""A part of options with which pytest has no JUnit files."""
CALLER_VARIABLES = "UNDERSTUDY_CALLER_VARIABLES"
"""Variable of `vllm_understudy.tree` with the caller's values of variables that it changes."""


class Run(Struct, kw_only=True):
    """The requests, the answers and the results of a run of the client."""

    version: str
    """Played version, such as 0.27.1."""
    exchanges: Sequence[Exchange]
    """Requests and answers, in the order of the requests."""
    repeated: Sequence[Exchange] = ()
    """Requests of the run before the upgrade that this run has not sent, sent after it."""
    ignored: Mapping[str, frozenset[str]] = {}
    """Fields of requests that the version ignores, by path."""
    status: int = 0
    """Exit status of the command; 0 for a recording."""
    output: str = ""
    """The end of the command's output."""
    is_silent: bool = False
    """The command has sent no request."""
    tests: Mapping[str, CaseResult] = {}
    """Results of tests by their names; empty without a JUnit file."""
    problems: Sequence[str] = ()
    """Why JUnit files have no results."""
    lost_entries: bool = False
    """The journal has not all requests."""


class Client(Struct, frozen=True, kw_only=True):
    """The command or the recorded exchanges whose requests are sent."""

    command: Sequence[str] = ()
    recorded: Sequence[Exchange] = ()
    """Exchanges of recordings, in the order of their requests."""
    base_url_variables: Sequence[str] = ()
    """Further variables that get the URL that ends with /v1."""


class Rehearsal:
    """Stand-ins of two versions, and the runs of a client against them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._processes = Processes()

    def close(self) -> None:
        """Ends the stand-ins."""
        self._processes.close()

    def start(
        self, version: str, words: Sequence[str], isolation: Isolation | None = None
    ) -> ServerProcess:
        """Starts a stand-in with the `words` of `serve`; call `run` to wait for it.

        A stand-in with the words of a file needs an `isolation`.
        """
        port = self._processes.port()
        flags = ("--vllm-version", version, "--host", HOST, "--port", str(port))
        defaults = ("--seed", str(SEED), "--journal", str(JOURNAL_ENTRIES))
        command = [*MODULE, "serve", *words, *flags, *defaults]
        return self._processes.start(f"vLLM {version}", port, command, isolation)

    def run(self, version: str, server: ServerProcess, earlier: Run | None = None) -> Run:
        """Runs the client against a stand-in.

        A client that fails sends no further requests. So that all breaks are found at once, those
        of the `earlier` run that it has not sent are sent, too.

        Raises:
            UsageError: The stand-in does not start, or the command cannot be run.
        """
        try:
            self._processes.wait(server)
        except FleetError as error:
            raise UsageError(str(error)) from None
        url = f"http://{server.address}"
        with tempfile.TemporaryDirectory(prefix="understudy-rehearse-") as folder:
            run = client_run(
                self._client, version, url=url, path=os.path.join(folder, "session.jsonl")
            )
            if earlier is not None:
                repeat_unsent(earlier, run, url, os.path.join(folder, "repeated.jsonl"))
        exchanges = (*run.exchanges, *run.repeated)
        posts = sum(exchange.request.method == "POST" for exchange in exchanges)
        if posts:
            entries = journal_entries(url)  # empty if the client has cleared the journal
            run.ignored = _ignored_in(entries)
            run.lost_entries = len(entries) < posts
        return run


def client_run(client: Client, version: str, *, url: str, path: str) -> Run:
    """Runs a client against a server of a version, and records its exchanges in a new file.

    Raises:
        UsageError: The command cannot be run.
    """
    run = Run(version=version, exchanges=())
    if client.command:
        # An XML file that the command only reads is no result, and must stay.
        result_paths = result_files(client.command)
        before = file_states(result_paths)
        with _proxy(url, path) as proxy_url:
            variables = environment(proxy_url, client.base_url_variables)
            if not result_paths and not any(NO_RESULTS in word for word in client.command):
                results_path = f"{path}{SUFFIX}"
                result_paths = {results_path: False}
                variables[PYTEST_OPTIONS] = _with_results(results_path)
            run.status, run.output = _run_command(client.command, variables)
        results = read_results(result_paths, before)
        run.tests = _without_port(results.tests, proxy_url)
        run.problems = results.problems
        run.exchanges = [exchange for _, exchange in recorded(path)]
        run.is_silent = not run.exchanges
    if client.recorded:
        replayed_path = f"{path}.replayed"
        with _proxy(url, replayed_path) as proxy_url:
            _send_again(client.recorded, proxy_url)
        replayed = [exchange for _, exchange in recorded(replayed_path)]
        run.exchanges = [*run.exchanges, *replayed]
    return run


def _without_port(tests: Mapping[str, CaseResult], url: str) -> dict[str, CaseResult]:
    """Returns results by names without the port of the proxy, which each run has another one of."""
    port = url.rpartition(":")[2]
    number = re.compile(rf"(?<!\d){port}(?!\d)")
    results: dict[str, CaseResult] = {}
    for name, result in tests.items():
        key = number.sub("PORT", name)
        results[key] = result.after(results.get(key))
    return results


def repeat_unsent(earlier: Run, run: Run, url: str, path: str) -> None:
    """Sends the requests that only the earlier run has sent to the server of `run`.

    Their exchanges are recorded in a new file.
    """
    unsent = pairing_of(earlier.exchanges, run.exchanges).unsent
    if not unsent:
        return
    with _proxy(url, path) as proxy_url:
        _send_again(unsent, proxy_url)
    run.repeated = [exchange for _, exchange in recorded(path)]


@contextmanager
def _proxy(url: str, path: str) -> Iterator[str]:
    """Records all exchanges with a server; yields the URL for the client."""
    file = RecordingFile(Path(path), url)
    upstream = Upstream(targets_by_model([url]), file)
    server = server_of(RecordingProxy(upstream, forwards_pages=True))
    server.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.stop(STOP_S)
        file.close()


def _with_results(path: str) -> str:
    """Returns the user's options of pytest, with a JUnit file.

    A skipped test has no verdict, and the exit status does not show it.
    """
    return f"{os.environ.get(PYTEST_OPTIONS, '')} --junitxml={shlex.quote(path)}".lstrip()


def _run_command(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Runs a command until it ends; returns its exit status and the end of its output."""
    environ = {**caller_environment(os.environ), **variables}
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror or error}") from None
        output = _Output(log)
        try:
            while process.poll() is None:
                output.show()
                gevent.sleep(POLL_S)
        finally:
            # Children that the command leaves behind would disturb the next run, and outlive it.
            _end(process)
        output.show()
        return process.returncode, output.tail()


def caller_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the user who has called this command.

    The program `understudy` starts this process with other variables of Python. With them, a
    program of the user would import the server's modules, and none that lie beside it.
    """
    variables = dict(environ)
    text = variables.pop(CALLER_VARIABLES, "")
    if not text:
        return variables
    with suppress(UntrustedDataError):
        values = decode_untrusted(text, type=dict[str, str | None])
        for name, value in values.items():
            if value is None:
                variables.pop(name, None)
            else:
                variables[name] = value
    return variables


def environment(url: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables with which clients find a server; `names` are further ones."""
    variables = {name: NO_KEY for name in KEYS if not os.environ.get(name)}
    variables |= dict.fromkeys((*BASE_URLS, *names), f"{url}/v1")
    variables |= dict.fromkeys(ROOT_URLS, url)
    for name in WITHOUT_PROXY:  # a proxy of the user's network does not find the stand-ins
        others = os.environ.get(name, "")
        variables[name] = f"{others},{HOST}".lstrip(",")
    return variables


class _Output:
    """The output of a command, which is copied to standard error while the file grows."""

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        self._shown_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self) -> None:
        """Copies what is new, in parts: a command can write gigabytes between two looks."""
        size = os.fstat(self._log.fileno()).st_size
        while self._shown_bytes < size:
            part = os.pread(self._log.fileno(), SHOWN_BYTES, self._shown_bytes)
            if not part:  # the command has cut its output
                return
            self._shown_bytes += len(part)
            print(self._decoder.decode(part), end="", file=sys.stderr, flush=True)
            gevent.sleep(0)  # the proxy and the signals must not wait for the terminal

    def tail(self) -> str:
        """Returns the end of the output."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return tail.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the command, if it still runs, with the children in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_S
    while process.poll() is None and time.monotonic() < deadline_s:
        gevent.sleep(POLL_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _send_again(exchanges: Sequence[Exchange], url: str) -> None:
    """Sends recorded requests, one after the other."""
    target = Target.from_url(url)
    for exchange in exchanges:
        headers, body = sent_parts(exchange.request)
        # A server that gives no answer leaves an exchange that is not compared.
        with (
            suppress(OSError, ValueError),
            closing(target.connection(READ_TIMEOUT_S)) as connection,
        ):
            whole_response(
                connection,
                exchange.request.method,
                exchange.request.target,
                body=body or None,
                headers=headers,
            )


def _ignored_in(entries: Iterable[ServedRequest]) -> dict[str, frozenset[str]]:
    ignored: dict[str, frozenset[str]] = {}
    for entry in entries:
        if entry.ignored_fields:
            names = ignored.get(entry.route, frozenset())
            ignored[entry.route] = names.union(entry.ignored_fields)
    return ignored
