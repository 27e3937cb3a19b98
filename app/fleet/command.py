"""`python -m app fleet`: show on one machine what routing by prefix does to the time to the first token."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import NoReturn

import gevent
import msgspec

from app.fleet import chart
from app.fleet.demonstration import demonstrate, proxied, urls
from app.fleet.errors import FleetError
from app.fleet.fleet import Fleet, running_fleet
from app.fleet.options import Options, read
from app.fleet.plan import check_flags, make_plan
from app.fleet.progress import Progress
from app.fleet.summary import Summary
from app.fleet.table import notes, table
from app.load.workload import Compose, Workload, make_workload
from app.simulated.corpus import Corpus, sample_sentences
from app.tokenization import Tokenizer, TokenizerError
from config import ConfigError, Settings
from config.loader import load

CHECK_EVERY_S = 1.0


def run(argv: Sequence[str], tokenizer_of: Callable[[Settings], Tokenizer]) -> int:
    """Exit status. `tokenizer_of` makes the tokenizer that a pod would use."""
    progress = Progress(sys.stderr)
    options = None
    try:
        options, flags = read(argv)
        check_flags(flags)
        settings = load(flags, {}, warn=lambda text: progress.note(f"warning: {text}"))
        with _ended_by_signals():
            _run(options, settings, flags, _composer(tokenizer_of(settings)), progress)
    except (ConfigError, FleetError, TokenizerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'fleet'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if options is not None and options.serve:
            return 0
        print("error: interrupted", file=sys.stderr)
        return 1
    return 0


def _run(
    options: Options, settings: Settings, flags: Sequence[str], compose: Compose, progress: Progress
) -> None:
    workload = make_workload(options.requests, options.groups, options.prefix_tokens, options.seed, compose)
    plan = make_plan(settings, flags, workload, options.pods, options.seed)
    with ExitStack() as ends:
        with progress.phase("starting indexer and pods", options.pods + 1) as step:
            fleet = ends.enter_context(running_fleet(plan, options.pods, time.monotonic, gevent.sleep, step))
        if options.serve:
            _serve(fleet, options)
        summaries = demonstrate(fleet, workload, options, time.perf_counter, progress)
    _show(summaries, options, workload)


def _serve(fleet: Fleet, options: Options) -> NoReturn:
    """A proxy for every policy, until a signal raises KeyboardInterrupt. FleetError when a process ends."""
    with ExitStack() as ends:
        addresses = [
            (policy, ends.enter_context(proxied(fleet, policy, options.seed))[0])
            for policy in options.policies
        ]
        print("\n".join(urls(addresses, fleet)), flush=True)
        while True:
            gevent.sleep(CHECK_EVERY_S)
            fleet.processes.check()


def _show(summaries: Sequence[Summary], options: Options, workload: Workload) -> None:
    print(table(summaries))
    for line in notes(summaries):
        print(line)
    if options.json is not None:
        _write_json(summaries, options, options.json)
    if options.png is None:
        return
    if not chart.can_draw():
        print(chart.HOW_TO_GET)
        return
    load_told = f"{options.rate:g} requests/s" if options.rate else f"{options.concurrency} at once"
    title = f"{options.pods} pods, {len(workload.asks)} requests, {load_told}, "
    chart.draw(summaries, title + f"{options.groups} prefixes of {options.prefix_tokens} tokens", options.png)
    print(f"picture: {options.png}")


def _write_json(summaries: Sequence[Summary], options: Options, path: Path) -> None:
    """The options and the figures of every policy."""
    names = ("pods", "requests", "groups", "prefix_tokens", "concurrency", "rate", "seed")
    asked = {name: getattr(options, name) for name in names}
    document = {"options": asked, "policies": summaries}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def _composer(tokenizer: Tokenizer) -> Compose:
    """Our sample sentences, as many tokens of them as are wanted."""
    book = Corpus(tokenizer, sample_sentences())

    def compose(tokens: int, rng: Random) -> str:
        return "".join(book.compose(tokens, rng)[1])

    return compose


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does: by KeyboardInterrupt, and always in this greenlet."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    this = gevent.getcurrent()
    watchers = [gevent.signal_handler(number, gevent.kill, this, KeyboardInterrupt) for number in numbers]
    try:
        yield
    finally:
        for watcher, number, handler in zip(watchers, numbers, before, strict=True):
            watcher.cancel()
            signal.signal(number, handler)
