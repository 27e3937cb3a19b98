"""Plays one workload under each policy, through a proxy of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from app.fleet.fleet import Fleet
from app.fleet.options import Options
from app.fleet.plan import REPLY_TOKENS
from app.fleet.policies import policy_of
from app.fleet.ports import HOST
from app.fleet.progress import Progress
from app.fleet.proxy import Proxy
from app.fleet.summary import Summary, summarize
from app.fleet.watch import server_of
from app.load.client import Client
from app.load.workload import Workload, arrivals


def demonstrate(
    fleet: Fleet, workload: Workload, options: Options, now: Callable[[], float], progress: Progress
) -> list[Summary]:
    """The figures of every policy, in turns, each with empty caches. FleetError when a process ends."""
    summaries = []
    for name in options.policies:
        fleet.forget()
        with progress.phase(name, len(workload.asks)) as step:
            summaries.append(_play(fleet, workload, options, name, now, step))
        fleet.processes.check()
    return summaries


@contextmanager
def proxied(fleet: Fleet, policy: str, seed: int) -> Iterator[tuple[str, Proxy]]:
    """Address (host:port) of a proxy that routes by `policy`, and the proxy, while the block lasts."""
    proxy = Proxy(fleet.pods, policy_of(policy, fleet.indexer.scores, Random(f"{seed}/{policy}")))
    server = server_of(proxy)
    server.start()
    try:
        yield f"{HOST}:{server.server_port}", proxy
    finally:
        server.stop(timeout=1)


def _play(
    fleet: Fleet,
    workload: Workload,
    options: Options,
    policy: str,
    now: Callable[[], float],
    step: Callable[[], None],
) -> Summary:
    gaps_s = arrivals(options.rate, Random(f"{options.seed}/arrivals")) if options.rate else None
    with proxied(fleet, policy, options.seed) as (address, proxy):
        client = Client(address, fleet.model, REPLY_TOKENS, now)
        begun_s = now()
        samples = client.play(workload, options.concurrency, gaps_s, lambda sample: step())
        return summarize(policy, samples, now() - begun_s, fleet.pods, proxy.policy.fallbacks)


def urls(addresses: Sequence[tuple[str, str]], fleet: Fleet) -> list[str]:
    """Where everything can be reached, a line each. `addresses`: of proxies, each after its policy."""
    lines = [f"proxy, {policy}: http://{address}" for policy, address in addresses]
    lines += [f"pod {number}: http://{pod}" for number, pod in enumerate(fleet.pods)]
    return [*lines, f"indexer: http://{fleet.indexer.address}"]
