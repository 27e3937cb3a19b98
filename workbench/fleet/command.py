"""`understudy fleet`: measures the effect of prefix-aware routing on TTFT, on one machine."""

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from random import Random
from typing import NoReturn

import gevent

from app.core.application import tokenizer_of
from app.core.engine.simulated.corpus import Corpus, sample_sentences
from app.core.settings import load
from app.core.text.base import TokenizerError
from app.extensions.plugins.plugged import routing_policies
from app.extensions.plugins.policies import PolicyMaker
from app.shared.http_client import Target
from app.shared.relay import server_of
from config.declaration import install, missing
from config.flags import as_command
from workbench.fleet.fleet import (
    REPLY_TOKENS,
    Fleet,
    FleetPlan,
    check_flags,
    running_fleet,
)
from workbench.fleet.fleet_flags import read_flags
from workbench.fleet.policy_summary import (
    PolicySummary,
    draw_policies,
    failure_notes,
    policy_table,
    summarize,
)
from workbench.fleet.processes import (
    HOST,
    FleetError,
    Processes,
    interrupted_by_signals,
)
from workbench.fleet.proxy import Proxy
from workbench.fleet.workload import Workload, make_workload
from workbench.load.output_files import json_document
from workbench.load.policies import policies_of
from workbench.load.progress import progress_bar
from workbench.load.synthetic import gamma_arrivals
from workbench.runs.recording_client import PlannedRequest, RecordingClient, completion

CHECK_INTERVAL_S = 1.0
JSON_OPTIONS = ("pods", "requests", "groups", "prefix_tokens", "concurrency", "rate", "seed")


@as_command(FleetError, TokenizerError)
def run(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    options, flags = read_flags(argv)
    if options.drill is not None:
        from workbench.drills.command import run_drill  # drills import the fleet

        with interrupted_by_signals():
            return run_drill(options, flags)
    check_flags(flags)
    settings = load(flags, {}, warn=_warn)
    policies = policies_of(options.policies, routing_policies(settings))
    with interrupted_by_signals():
        corpus = Corpus(tokenizer_of(settings), sample_sentences())

        def compose(tokens: int, rng: Random) -> str:
            _, words = corpus.compose(tokens, rng)
            return "".join(words)

        workload = make_workload(
            options.requests,
            options.groups,
            options.prefix_tokens,
            seed=options.seed,
            compose=compose,
        )
        with ExitStack() as stack:
            with progress_bar(
                sys.stderr, "starting indexer and pods", options.pods + 1, "servers"
            ) as progress:
                plan = FleetPlan(
                    flags=flags,
                    settings=settings,
                    workload=workload,
                    pods=options.pods,
                    seed=options.seed,
                )
                processes = Processes()
                fleet = stack.enter_context(running_fleet(plan, processes, progress))
            if options.serve:
                with suppress(KeyboardInterrupt):
                    _serve(fleet, options, policies)
                return 0
            summaries = compare_policies(fleet, workload, options, policies)
        _report(summaries, options, workload)
    return 0


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _serve(fleet: Fleet, options: Namespace, policies: Mapping[str, PolicyMaker]) -> NoReturn:
    """Serves a proxy for every policy until KeyboardInterrupt.

    Raises:
        FleetError: A process ended.
    """
    with ExitStack() as stack:
        addresses = {}
        for policy, make_policy in policies.items():
            proxy = running_proxy(fleet, make_policy, Random(f"{options.seed}/{policy}"))
            addresses[policy], _ = stack.enter_context(proxy)
        for policy, address in addresses.items():
            print(f"proxy, {policy}: http://{address}")
        for number, pod in enumerate(fleet.pods):
            print(f"pod {number}: http://{pod}")
        print(f"indexer: http://{fleet.indexer.address}", flush=True)
        while True:
            gevent.sleep(CHECK_INTERVAL_S)
            fleet.processes.check()


def compare_policies(
    fleet: Fleet,
    workload: Workload,
    options: Namespace,
    policies: Mapping[str, PolicyMaker],
) -> list[PolicySummary]:
    """Runs each policy with empty caches, and returns the figures.

    Raises:
        FleetError: A process ended.
    """
    summaries = []
    for policy, make_policy in policies.items():
        fleet.clear_caches()
        errors: list[str] = []
        rng = Random(f"{options.seed}/{policy}")
        with (
            progress_bar(sys.stderr, policy, len(workload.prompts), "requests") as progress,
            running_proxy(fleet, make_policy, rng) as (address, proxy),
        ):
            start_s = time.perf_counter()
            client = RecordingClient(
                Target.from_url(f"http://{address}"),
                {},
                in_flight=options.concurrency,
                now=time.perf_counter,
                on_send=progress,
                on_error=errors.append,
            )
            answered = client.run(_plan_requests(fleet, workload, options))
            duration_s = time.perf_counter() - start_s
        summaries.append(
            summarize(
                policy,
                answered,
                errors,
                duration_s=duration_s,
                pods=fleet.pods,
                fallbacks=proxy.policy.fallbacks,
            )
        )
        fleet.processes.check()
    return summaries


def _plan_requests(
    fleet: Fleet, workload: Workload, options: Namespace
) -> Iterator[PlannedRequest]:
    arrivals_s: Iterator[float] = repeat(0.0)
    if options.rate:
        arrivals_s = gamma_arrivals(options.rate, 1.0, Random(f"{options.seed}/arrivals"))
    for prompt, arrival_s in zip(workload.prompts, arrivals_s, strict=False):
        yield PlannedRequest(arrival_s, completion(fleet.model, prompt, REPLY_TOKENS))


@contextmanager
def running_proxy(
    fleet: Fleet, make_policy: PolicyMaker, rng: Random
) -> Iterator[tuple[str, Proxy]]:
    """Yields the address (host:port) of a proxy with a policy, and the proxy."""
    proxy = Proxy(fleet.pods, make_policy(fleet.indexer.scores, rng))
    server = server_of(proxy)
    server.start()
    try:
        yield f"{HOST}:{server.server_port}", proxy
    finally:
        server.stop(timeout=1)


def _report(summaries: Sequence[PolicySummary], options: Namespace, workload: Workload) -> None:
    print(policy_table(summaries))
    for line in failure_notes(summaries):
        print(line)
    if options.json is not None:
        document = {
            "options": {name: getattr(options, name) for name in JSON_OPTIONS},
            "policies": summaries,
        }
        options.json.write_bytes(json_document(document))
    if options.png is None:
        return
    if missing("fleet"):
        print(f"no picture was drawn: {install('fleet')}")
        return
    pace = f"{options.concurrency} at once"
    if options.rate:
        pace = f"{options.rate:g} requests/s"
    title = (
        f"{options.pods} pods, {len(workload.prompts)} requests, {pace}, {options.groups} prefixes"
        f" of {options.prefix_tokens} tokens"
    )
    draw_policies(summaries, title, options.png)
    print(f"picture: {options.png}")
