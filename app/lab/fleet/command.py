"""`python -m app fleet`: measures the effect of prefix-aware routing on TTFT, on one machine."""

import math
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from random import Random
from typing import NoReturn

import gevent
import msgspec
from msgspec import Struct

from app.engine.simulated.corpus import Corpus, sample_sentences
from app.lab.fidelity.record import Measured, RecordingClient, Wanted, completion
from app.lab.fleet.fleet import (
    HOST,
    REPLY_TOKENS,
    Fleet,
    FleetError,
    Processes,
    Workload,
    check_flags,
    make_workload,
    running_fleet,
)
from app.lab.fleet.routing import PolicyMaker, Proxy, policies_of
from app.lab.load import report
from app.lab.load.loads import arrivals
from app.lab.load.policies import POLICIES
from app.serving.http.client import Target
from app.serving.http.relay import server_of
from app.text.base import Tokenizer, TokenizerError
from config import Settings
from config.declaration import COMMAND, check_installed, install, missing
from config.flags import FlagParser, as_command, number_of, whole_number
from config.loader import load

HEADINGS = ("policy", "TTFT mean", "p50", "p90", "p99", "cached", "requests/s", "per pod", "failed")
COLORS = (report.GREY, report.BLUE, report.RED)


class PolicySummary(Struct, frozen=True, kw_only=True):
    """Figures of a policy, as in JSON.

    Times are seconds; NaN (null) without an answered request.
    """

    policy: str
    requests: int
    failed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttfts_s: tuple[float, ...]
    cached_share: float
    requests_per_s: float
    """Answered requests per second of the whole run."""
    per_pod: dict[str, int]
    fallbacks: int
    """Requests routed without scores, because the indexer failed."""
    errors: tuple[str, ...]
    """Distinct errors, the most frequent first."""


def summarize(
    policy: str,
    answered: Sequence[Measured],
    errors: Sequence[str],
    took_s: float,
    pods: Sequence[str],
    fallbacks: int,
) -> PolicySummary:
    ttfts_s = tuple(sorted(it.text_s - it.send_s for it in answered))
    mean, p50, p90, p99 = report.four(ttfts_s) if ttfts_s else [math.nan] * 4
    counts = Counter(it.pod for it in answered)
    return PolicySummary(
        policy=policy,
        requests=len(answered) + len(errors),
        failed=len(errors),
        ttft_mean_s=mean,
        ttft_p50_s=p50,
        ttft_p90_s=p90,
        ttft_p99_s=p99,
        ttfts_s=ttfts_s,
        cached_share=sum(it.cached_tokens for it in answered)
        / max(1, sum(it.input_tokens for it in answered)),
        requests_per_s=len(answered) / took_s if took_s > 0 else 0.0,
        per_pod={pod: counts[pod] for pod in pods},
        fallbacks=fallbacks,
        errors=tuple(error for error, _ in Counter(errors).most_common()),
    )


def table(summaries: Sequence[PolicySummary]) -> str:
    rows: list[Sequence[str]] = [HEADINGS]
    for at in summaries:
        counts = at.per_pod.values()
        times_s = at.ttft_mean_s, at.ttft_p50_s, at.ttft_p90_s, at.ttft_p99_s
        times = ("-" if math.isnan(time_s) else f"{time_s * 1000:.0f} ms" for time_s in times_s)
        shares = f"{at.cached_share:.0%}", f"{at.requests_per_s:.1f}"
        rows.append((at.policy, *times, *shares, f"{min(counts)}-{max(counts)}", str(at.failed)))
    return report.markdown(rows)


def notes(summaries: Sequence[PolicySummary]) -> list[str]:
    lines = []
    for at in summaries:
        if at.fallbacks:
            without = f"{at.fallbacks} requests were routed without the indexer, which failed"
            lines.append(f"{at.policy}: {without}")
        if at.failed:
            lines.append(
                f"{at.policy}: {at.failed} requests failed, most of them so: {at.errors[0]}"
            )
    return lines


def draw(summaries: Sequence[PolicySummary], title: str, path: Path) -> None:
    """Writes a picture: the TTFTs, the cached share of the prompts. Raises OSError."""
    with report.picture_file(path, title, (8, 3.2), (1, 2), (5, 3)) as (shares, cached):
        for at, color in zip(summaries, COLORS, strict=False):
            percents = [(rank + 1) / len(at.ttfts_s) * 100 for rank in range(len(at.ttfts_s))]
            times_ms = [time_s * 1000 for time_s in at.ttfts_s]
            shares.step(times_ms, percents, where="post", label=at.policy, color=color)
        shares.set(xlabel="TTFT (ms)", ylabel="requests with a first token (%)", ylim=(0, 102))
        shares.set_xlim(left=0)
        names = [at.policy for at in summaries]
        drawn = cached.bar(
            names, [at.cached_share * 100 for at in summaries], color=COLORS[: len(names)]
        )
        cached.bar_label(drawn, fmt="%.0f")
        cached.set_xticks(range(len(names)), names, rotation=30, ha="right")
        cached.set(ylabel="cached prompt tokens (%)", ylim=(0, 105))


ABOUT = """\
Start pods, an indexer and a proxy on this machine, play a workload of shared prefixes, and show the time to
the first token with each way of routing (docs/fleet.md). Settings of the server are flags here, too: the pods
and the indexer get them.
"""
MOST_PODS = 64


def read(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Returns the options (`concurrency` or `rate` is None) and the flags of servers."""
    flags = FlagParser(prog=f"{COMMAND} fleet", description=ABOUT, allow_abbrev=False)
    add, whole, seed = flags.add_argument, whole_number(1), whole_number(0, 2**31)
    add("--pods", type=whole_number(1, MOST_PODS), default=4, help="servers to start [4]")
    add("--requests", type=whole, default=200, help="requests to send under each policy [200]")
    add("--groups", type=whole, default=10, help="system prompts that they share [10]")
    add("--prefix-tokens", type=whole, default=2000, help="length of a system prompt [2000]")
    pace = flags.add_mutually_exclusive_group().add_argument
    pace("--concurrency", type=whole, default=12, help="requests that run at once [12]")
    at_rate = "requests a second instead, however many then run at once"
    pace("--rate", type=number_of(0, 1e6), help=at_rate)
    ways = f"ways of routing: {', '.join(POLICIES)}, and those of plugins [all but least-requests]"
    add("--policies", nargs="+", default=(), help=ways, metavar="POLICY")
    add("--seed", type=seed, default=1, help="of workload, routing and pods [1]")
    picture = flags.add_mutually_exclusive_group().add_argument
    picture(
        "--png", type=Path, help="picture to draw, a PNG or an SVG [fleet.png, with matplotlib]"
    )
    picture("--no-png", action="store_true", help="draw none")
    add("--json", type=Path, help="file for the figures, every TTFT among them")
    add("--serve", action="store_true", help="play nothing: serve until Ctrl-C, tell the URLs")
    given, others = flags.parse_beside_settings(argv)
    if given.png is not None:
        check_installed("fleet", "--png")
    report.check_targets([given.json, given.png])
    report.check_picture(given.png)
    given.concurrency = None if given.rate else given.concurrency
    given.png = None if given.no_png else given.png or Path("fleet.png")
    return given, others


CHECK_EVERY_S = 1.0


Plugged = Callable[[Settings], Mapping[str, PolicyMaker]]
"""Returns the policies of the plugins in the settings, by name."""


@as_command(FleetError, TokenizerError)
def run(
    argv: Sequence[str],
    tokenizer_of: Callable[[Settings], Tokenizer],
    plugged: Plugged = lambda settings: {},
) -> int:
    """Returns the exit status. `tokenizer_of` makes the tokenizer that a pod would use."""
    options, flags = read(argv)
    check_flags(flags)
    settings = load(flags, {}, warn=lambda text: print(f"warning: {text}", file=sys.stderr))
    policies = policies_of(options.policies, plugged(settings))
    pods, seed, processes = options.pods, options.seed, Processes(time.monotonic, gevent.sleep)
    with _ended_by_signals():
        corpus = Corpus(tokenizer_of(settings), sample_sentences())

        def compose(tokens: int, rng: Random) -> str:
            return "".join(corpus.compose(tokens, rng)[1])

        workload = make_workload(
            options.requests, options.groups, options.prefix_tokens, seed, compose
        )
        with ExitStack() as ends:
            with report.progress_of(
                sys.stderr, "starting indexer and pods", pods + 1, "servers"
            ) as progress:
                running = running_fleet(settings, flags, workload, pods, seed, processes, progress)
                fleet = ends.enter_context(running)
            if options.serve:
                with suppress(KeyboardInterrupt):
                    _serve(fleet, options, policies)
                return 0
            summaries = demonstrate(fleet, workload, options, policies, time.perf_counter)
        _show(summaries, options, workload)
    return 0


def _serve(fleet: Fleet, options: Namespace, policies: Mapping[str, PolicyMaker]) -> NoReturn:
    """Serves a proxy for every policy until KeyboardInterrupt.

    Raises FleetError when a process ends.
    """
    with ExitStack() as ends:
        addresses = [
            (name, ends.enter_context(proxied(fleet, make, Random(f"{options.seed}/{name}")))[0])
            for name, make in policies.items()
        ]
        for policy, address in addresses:
            print(f"proxy, {policy}: http://{address}")
        for number, pod in enumerate(fleet.pods):
            print(f"pod {number}: http://{pod}")
        print(f"indexer: http://{fleet.indexer.address}", flush=True)
        while True:
            gevent.sleep(CHECK_EVERY_S)
            fleet.processes.check()


def demonstrate(
    fleet: Fleet,
    workload: Workload,
    options: Namespace,
    policies: Mapping[str, PolicyMaker],
    now: Callable[[], float],
) -> list[PolicySummary]:
    """Runs each policy with empty caches, and returns the figures.

    Raises FleetError when a process ends.
    """
    summaries = []
    for name, make in policies.items():
        fleet.forget()
        due_s: Iterator[float] = repeat(0.0)
        if options.rate:
            due_s = arrivals(options.rate, 1.0, Random(f"{options.seed}/arrivals"))
        requests = (
            Wanted(at_s, completion(fleet.model, prompt, REPLY_TOKENS))
            for prompt, at_s in zip(workload.prompts, due_s, strict=False)
        )
        errors: list[str] = []
        with (
            report.progress_of(sys.stderr, name, len(workload.prompts), "requests") as progress,
            proxied(fleet, make, Random(f"{options.seed}/{name}")) as (address, proxy),
        ):
            target, begun_s = Target.from_url(f"http://{address}"), now()
            client = RecordingClient(target, {}, options.concurrency, now, progress, errors.append)
            answered = client.run(requests)
            took_s = now() - begun_s
        summaries.append(
            summarize(name, answered, errors, took_s, fleet.pods, proxy.policy.fallbacks)
        )
        fleet.processes.check()
    return summaries


@contextmanager
def proxied(fleet: Fleet, make: PolicyMaker, rng: Random) -> Iterator[tuple[str, Proxy]]:
    """Yields the address (host:port) of a proxy that routes by the policy of `make`, and the proxy."""
    proxy = Proxy(fleet.pods, make(fleet.indexer.scores, rng))
    server = server_of(proxy)
    server.start()
    try:
        yield f"{HOST}:{server.server_port}", proxy
    finally:
        server.stop(timeout=1)


def _show(summaries: Sequence[PolicySummary], options: Namespace, workload: Workload) -> None:
    print(table(summaries))
    for line in notes(summaries):
        print(line)
    if options.json is not None:
        names = ("pods", "requests", "groups", "prefix_tokens", "concurrency", "rate", "seed")
        document = {
            "options": {name: getattr(options, name) for name in names},
            "policies": summaries,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    if options.png is None:
        return
    if missing("fleet"):
        print(f"no picture: {install('fleet')}")
        return
    load_text = f"{options.rate:g} requests/s" if options.rate else f"{options.concurrency} at once"
    title = f"{options.pods} pods, {len(workload.prompts)} requests, {load_text}, "
    draw(
        summaries,
        title + f"{options.groups} prefixes of {options.prefix_tokens} tokens",
        options.png,
    )
    print(f"picture: {options.png}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ends the block by KeyboardInterrupt, raised in this greenlet, on SIGINT, SIGTERM and SIGHUP."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    this = gevent.getcurrent()
    watchers = [
        gevent.signal_handler(number, gevent.kill, this, KeyboardInterrupt) for number in numbers
    ]
    try:
        yield
    finally:
        for watcher, number, handler in zip(watchers, numbers, before, strict=True):
            watcher.cancel()
            signal.signal(number, handler)
