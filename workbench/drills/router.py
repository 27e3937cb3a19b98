"""The router of a drill: a policy of our own, a command, or a URL."""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

import gevent
from msgspec import Struct

from app.extensions.plugins.policies import PolicyMaker
from app.shared.http_client import COMPLETIONS, Target, exchange
from app.shared.relay import server_of
from config import ConfigError, UsageError
from workbench.fleet.indexer import Indexer
from workbench.fleet.processes import HOST, FleetError, Processes
from workbench.fleet.proxy import Proxy

READY_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1


class RunningRouter(Struct, frozen=True):
    """A router that has been started, or that was there."""

    target: Target
    count_retries: Callable[[], int] | None
    """Returns how many attempts the router has repeated; None if it cannot be asked."""


class RouterChoice(Struct, frozen=True, kw_only=True):
    """The router of a drill: a command, a URL, or else a policy of our own."""

    command: str | None = None
    target: Target | None = None
    policy: str = ""
    make_policy: PolicyMaker | None = None
    retries: str | None = None
    """URL of the router's metrics, `#`, and the name of its counter of retries."""

    @property
    def is_own(self) -> bool:
        """True if a policy of our own routes."""
        return self.command is None and self.target is None

    @property
    def name(self) -> str:
        """Name in the report."""
        if self.command is not None:
            return self.command
        if self.target is not None:
            return self.target.url
        return self.policy


def fill_placeholders(template: str, *, ports: Sequence[int], pods: Sequence[str]) -> Sequence[str]:
    """Returns the words of a command: {port}, {port2} and {pods} are replaced.

    A word {pods} becomes one URL for each pod; within a word, the URLs are joined by commas.
    """
    urls = [f"http://{pod}" for pod in pods]
    words: list[str] = []
    for word in shlex.split(template):
        if word == "{pods}":
            words += urls
            continue
        for name, value in (("port", ports[0]), ("port2", ports[1]), ("pods", ",".join(urls))):
            word = word.replace(f"{{{name}}}", str(value))
        words.append(word)
    return words


def check_command(template: str) -> None:
    """Raises UsageError for a command that cannot be started with a port and pods."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise UsageError(f"argument --router: {error}") from None
    for name in ("{port}", "{pods}"):
        if not any(name in word for word in words):
            raise UsageError(f"argument --router: the command must contain {name}")


def check_counter(source: str) -> None:
    """Raises UsageError for a source of `read_counter` that has no valid URL."""
    try:
        words = fill_placeholders(source, ports=(1, 2), pods=())
    except ValueError as error:
        raise UsageError(f"argument --router-retries: {error}") from None
    if len(words) != 1:
        raise UsageError("argument --router-retries: must be a single word")
    try:
        Target.from_url(words[0].partition("#")[0])
    except ConfigError as error:
        raise UsageError(f"argument --router-retries: {error}") from None


@contextmanager
def running_router(
    choice: RouterChoice,
    *,
    pods: Sequence[str],
    processes: Processes,
    indexer: Indexer | None,
    seed: int,
) -> Iterator[RunningRouter]:
    """Yields the router; `indexer` is that of a policy of our own.

    Raises:
        FleetError: The router does not start.
    """
    ports = (processes.port(), processes.port())
    count_retries = None
    if choice.retries is not None:
        [url] = fill_placeholders(choice.retries, ports=ports, pods=pods)
        count_retries = partial(read_counter, url)
    if choice.target is not None:
        yield RunningRouter(choice.target, count_retries)
    elif choice.command is not None:
        command = fill_placeholders(choice.command, ports=ports, pods=pods)
        try:
            processes.start("router", ports[0], command)
        except OSError as error:
            raise FleetError(f"router {command[0]}: {error.strerror}") from None
        yield RunningRouter(Target.from_url(f"http://{HOST}:{ports[0]}"), count_retries)
    else:
        assert indexer is not None and choice.make_policy is not None
        policy = choice.make_policy(indexer.scores, Random(f"{seed}/{choice.policy}"))
        proxy = Proxy(pods, policy)
        server = server_of(proxy)
        server.start()
        try:
            target = Target.from_url(f"http://{HOST}:{server.server_port}")
            yield RunningRouter(target, proxy.unreachable.total)
        finally:
            server.stop(timeout=1)


def read_counter(source: str) -> int:
    """Returns the sum of a counter's series; 0 for a counter without series.

    `source` is a URL of metrics in Prometheus' text format, `#`, and the counter's name.

    Raises:
        FleetError: The metrics cannot be read.
    """
    url, _, name = source.partition("#")
    target = Target.from_url(url)
    try:
        status, text = exchange(target.address, "GET", target.prefix)
    except OSError as error:
        raise FleetError(f"router metrics at {url}: {error}") from None
    if status != 200:
        raise FleetError(f"router metrics at {url}: the router returned status {status}")
    total = 0.0
    for line in text.decode(errors="replace").splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name:
            try:
                total += float(value)
            except ValueError:
                raise FleetError(
                    f"router metrics at {url} contain an invalid line: {line[:100]}"
                ) from None
    if not math.isfinite(total):
        raise FleetError(
            f"router metrics at {url}: the value of {name} is {total}, which is not finite"
        )
    return round(total)


def wait_for_router(target: Target, body: bytes, check: Callable[[], None]) -> None:
    """Sends requests until the router answers one; `check` raises FleetError if it has ended.

    Raises:
        FleetError: No request was answered in time.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    reason = ""
    while time.monotonic() < deadline_s:
        check()
        try:
            status, answer = exchange(
                target.address,
                "POST",
                f"{target.prefix}{COMPLETIONS}",
                body,
                timeout_s=READY_TIMEOUT_S,
                headers=target.with_key({}),
            )
        except OSError as error:
            reason = str(error)
        else:
            if status == 200:
                return
            reason = f"status {status}: {answer.decode(errors='replace')[:200]}"
        gevent.sleep(POLL_INTERVAL_S)
    raise FleetError(f"the router at {target.url} does not respond: {reason}")
