"""`python -m app simulate`: simulates a load on engines, on virtual time."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from app.base.cores import usable_cores
from app.console.compare import RunFigures, compare
from app.lab.fidelity import pictures, simulation
from app.lab.fidelity import summary as summaries
from app.lab.fidelity.disaggregation import Disaggregation
from app.lab.fidelity.goodput import check_classes, read_limits
from app.lab.fidelity.pod import Watch
from app.lab.fidelity.traces import read_trace
from app.lab.load import autoscale, loads, report
from app.lab.load.loads import LONGEST_S, MOST_TOKENS, LoadTrace
from app.lab.load.policies import POLICIES, RANDOM
from app.lab.load.report import check_picture, check_targets, picture_file, progress_of, whole_file
from config import ConfigError, UsageError
from config.datasheet import AUTO, profile_of
from config.declaration import COMMAND, check_installed
from config.flags import (
    FlagParser,
    as_argument,
    as_command,
    duration_of,
    number_of,
    size_of,
    whole_number,
)
from config.loader import load
from config.profile import DEFAULT_PROFILE, EngineLimits, Profile
from config.settings import Settings
from config.shapes import DEVICES
from config.yaml_file import parse_yaml

ABOUT = """\
Simulate a load on an engine, or on a fleet of them, on virtual time: the steps that timing steps plays live
(docs/fidelity.md). The load is a trace, or it is drawn. A DURATION is 60us, 250ms or 1.5s. LENGTHS are N,
N:lognormal, N:lognormal:SIGMA, N:uniform (half to three halves of N), LOW-HIGH or sharegpt. With
--plugin NAME its settings are flags, too.
"""
ENGINE = {
    **{
        "max-num-seqs": 1,
        "max-num-batched-tokens": 1,
        "num-gpu-blocks-override": 2,
        "block-size": 1,
    },
    **{"max-model-len": 1, "long-prefill-token-threshold": 0},
}
"""Limits of the engine, vLLM's, each with its least value."""
SWITCHES = ("enable-chunked-prefill", "enable-prefix-caching", "async-scheduling")
TRANSFERS = ("transfer_bandwidth", "transfer_latency", "kv_bytes_per_token")
STDOUT = Path("-")
DEFAULT_BANDWIDTH = 50e9
"""Bytes a second of a port of 400 Gbit/s."""
Autoscalers = Callable[[Settings], Mapping[str, autoscale.AutoscalerStart]]
"""Returns the autoscaling policies of the plugins in the settings, by name."""
Plugged = Callable[[Settings, Profile], tuple[str, simulation.StepCosts] | None]
"""Returns name and step costs of the plugin in the settings that supplies them for a profile, if
any.
"""
DRAWN = (
    "rate",
    "arrivals",
    "burstiness",
    "ramp_from",
    "input_tokens",
    "output_tokens",
    "seconds",
) + (*("num_requests", "prefix_groups", "prefix_tokens", "turns", "think"),)
TRACE_COLUMNS = (
    "columns arrival_s, input_tokens, output_tokens; where prompts share a beginning, also prefix_group and "
    "prefix_tokens; of sessions also session and think_s; class for --goodput; others are ignored. Or a "
    "trace of Azure, BurstGPT or Mooncake, or a result of vllm bench serve, guidellm or aiperf"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A load and the fleet that gets it; either `trace` or `recipe` is None."""

    profile_name: str
    plan: simulation.SimulationPlan
    trace: Path | None
    recipe: loads.Recipe | None
    judgement: summaries.Judgement

    def load(self, progress: simulation.Progress = lambda done: None) -> LoadTrace:
        longest = simulation.longest_tokens(self.plan.profile.engine)
        if self.recipe is not None:
            load = loads.draw_load(self.recipe, longest, progress)
        else:
            assert self.trace is not None
            load = read_trace(self.trace, progress)
        engine = self.plan.profile.engine
        for number, sizes in enumerate(zip(load.input_tokens, load.output_tokens, strict=True)):
            if sum(sizes) > longest:
                rule = (
                    "max-model-len"
                    if longest == engine.max_model_len
                    else "what cache and budget hold"
                )
                raise ConfigError(
                    f"{load.row(number)}: input_tokens {sizes[0]} and output_tokens {sizes[1]} together must "
                    f"not exceed {rule}, {longest} tokens"
                )
        check_classes(self.judgement.limits or {}, load)
        scaling, length_s = self.plan.autoscaling, load.arrival_s[-1] - load.arrival_s[0]
        # How long sessions take, and clients with few places, depends on answers.
        is_open = not load.session and self.plan.in_flight is None
        if scaling is not None and scaling.cold_start_s >= length_s and is_open:
            raise ConfigError(
                f"--cold-start {scaling.cold_start_s:g} s must be shorter than the load, {length_s:.6g} s"
            )
        return load

    def run(
        self,
        load: LoadTrace,
        progress: simulation.Progress = lambda done: None,
        watch: Watch | None = None,
    ) -> tuple[simulation.SimulationOutcome, summaries.RunSummary]:
        """Simulates `load`; returns the times of its requests, and the figures."""
        outcome = simulation.simulate(load, self.plan, progress, watch)
        return outcome, summaries.summarize(outcome, self.profile_name, self.judgement)

    def at(self, name: str, value: float) -> Job:
        if name == "rate":
            assert self.recipe is not None
            return replace(self, recipe=replace(self.recipe, rate=value))
        count, plan = int(value), self.plan
        if name == summaries.SPLIT:
            assert plan.disaggregation is not None
            split = replace(plan.disaggregation, prefill_pods=count, decode_pods=plan.pods - count)
            return replace(self, plan=replace(plan, disaggregation=split if count else None))
        plan = replace(plan, pods=count) if name == "pods" else replace(plan, in_flight=count)
        return replace(self, plan=plan)

    def head(self, swept: str) -> str:
        """Returns the heading of a table:

        profile, load and fleet; `swept` is the setting of a sweep.
        """
        plan, recipe = self.plan, self.recipe
        load = (
            f"trace {self.trace}" if recipe is None else f"drawn load, {recipe}, seed {recipe.seed}"
        )
        if recipe is not None and swept == "rate":
            load = load.replace(f" at {recipe.rate:g}/s", "", 1)
        if plan.in_flight is not None and swept != "in-flight":
            load += f", {plan.in_flight} in flight at most"
        return f"{self.profile_name}: {load}{self.fleet(swept, '; ')}"

    def title(self, load: LoadTrace) -> str:
        name = "drawn" if self.trace is None else self.trace.name
        return f"{self.profile_name}: {len(load):,} requests, {name}{self.fleet()}"

    def fleet(self, swept: str = "", before: str = ", ") -> str:
        """Returns the fleet for headings, after `before`; nothing for a single pod."""
        plan = self.plan
        if plan.autoscaling is not None:
            return f"{before}pods by {plan.autoscaling.written}, {plan.policy}"
        one = plan.pods == 1 and swept != "pods"
        fleet = (
            ""
            if one
            else f"{before}{'' if swept == 'pods' else f'{plan.pods} '}pods, {plan.policy}"
        )
        if (split := plan.disaggregation) is not None:
            pools = "" if swept == summaries.SPLIT else f", {split.prefill_pods} of them prefill"
            fleet += f"{pools}, {split}"
        return fleet


def make_job(
    given: Namespace,
    settings: Settings,
    plugged: Plugged,
    autoscalers: Autoscalers = lambda settings: {},
) -> Job:
    """Makes the job of the flags.

    Raises ConfigError, in one line, for wrong values and for conflicts.
    """
    limits = {name: getattr(given, name, None) for name in EngineLimits.__struct_fields__}
    changes = {name: value for name, value in limits.items() if value is not None}
    made_of = given.device, given.tensor_parallel_size, given.model_config, given.vllm_version
    profile = profile_of(given.profile, *made_of, changes)
    engine = msgspec.structs.replace(profile.engine, **changes)
    simulation.check_engine(engine, f"profile {given.profile} with the flags")
    swept = "" if given.sweep is None else given.sweep.name
    if swept and getattr(given, swept.replace("-", "_")) is not None:
        raise UsageError(f"--{swept} must not be given with --sweep {swept}")
    if given.profile != AUTO and given.tensor_parallel_size > 1:
        raise ConfigError(
            f"profile {given.profile}: tensor-parallel-size can be given with profile {AUTO} only"
        )
    if given.turnaround is not None and given.in_flight is None and swept != "in-flight":
        raise UsageError("--turnaround goes with --in-flight")
    plan = simulation.SimulationPlan(
        profile=msgspec.structs.replace(profile, engine=engine),
        pods=1 if given.pods is None else given.pods,
        policy=given.policy,
        in_flight=given.in_flight,
        turnaround_s=given.turnaround or 0.0,
        seed=given.seed,
        autoscaling=_autoscaling(given, swept, profile.weight_bytes, autoscalers(settings)),
    )
    if (split := _disaggregation(given, swept, profile.kv_bytes_per_token)) is not None:
        plan = replace(plan, disaggregation=split, pods=split.prefill_pods + split.decode_pods)
    recipe, name = make_recipe(given, swept == "rate"), given.profile
    if found := plugged(settings, profile):
        name, plan = f"{name}, steps by {found[0]}", replace(plan, step_costs=found[1])
    check_files(given)
    try:
        goodput = None if given.goodput is None else read_limits(given.goodput)
    except ValueError as error:
        raise UsageError(f"--goodput {error}") from None
    judgement = summaries.Judgement(goodput, given.gpu_hour_price, given.slo)
    return Job(profile_name=name, plan=plan, trace=given.trace, recipe=recipe, judgement=judgement)


def _disaggregation(given: Namespace, swept: str, kv_bytes: float | None) -> Disaggregation | None:
    """Returns the split into prefill and decode pods, of a sweep the first; None without one."""
    pools, names = (given.prefill_pods, given.decode_pods), "--prefill-pods and --decode-pods"
    either, sweeps = pools != (None, None), swept == summaries.SPLIT
    details = [
        f"--{name.replace('_', '-')}" for name in TRANSFERS if getattr(given, name) is not None
    ]
    kv_bytes = given.kv_bytes_per_token or kv_bytes
    rules = {
        f"{names} go together": not either or None not in pools,
        f"{names} count all pods: --pods and --sweep of pods do not go with them": (
            not either or (given.pods is None and not sweeps and swept != "pods")
        ),
        f"--sweep {swept} needs more --pods than its last value: the others decode": (
            not sweeps or (given.pods or 0) > given.sweep.values[-1]
        ),
        f"{', '.join(details)} only with {names}": either or sweeps or not details,
        f"profile {given.profile} does not tell the bytes of a token's keys: give --kv-bytes-per-token": (
            not (either or sweeps) or kv_bytes is not None
        ),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ConfigError(rule)
    if kv_bytes is None or not (either or sweeps):
        return None
    first = int(given.sweep.values[0]) if sweeps else given.prefill_pods
    return Disaggregation(
        prefill_pods=first,
        decode_pods=given.pods - first if sweeps else given.decode_pods,
        bytes_per_token=kv_bytes,
        bandwidth=given.transfer_bandwidth or DEFAULT_BANDWIDTH,
        latency_s=given.transfer_latency or 0.0,
    )


def _autoscaling(
    given: Namespace,
    swept: str,
    weight_bytes: float,
    plugged: Mapping[str, autoscale.AutoscalerStart],
) -> autoscale.Autoscaling | None:
    written, cold_start = given.autoscale, given.cold_start
    given_s = {"every_s": given.autoscale_every, "scrape_s": given.scrape_interval}
    times = {name: value for name, value in given_s.items() if value is not None}
    if written is None or cold_start is None:
        if written or cold_start or times:
            raise ConfigError(
                "--autoscale and --cold-start go together, and with them the times of looks"
            )
        return None
    if swept in ("pods", summaries.SPLIT) or given.prefill_pods is not None:
        raise ConfigError("--autoscale goes with neither a sweep of pods nor --prefill-pods")
    name = "autoscale"
    try:
        policy = autoscale.read_policy(written, plugged)
        name = "cold-start"
        cold_start_s = autoscale.read_cold_start(cold_start, weight_bytes)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"--{name} {error}") from None
    return autoscale.Autoscaling(policy, cold_start_s, **times, written=written)


def make_recipe(given: Namespace, rate_is_swept: bool) -> loads.Recipe | None:
    flags = {name: value for name in DRAWN if (value := getattr(given, name)) is not None}
    if given.trace is not None:
        if flags or rate_is_swept:
            other = "--sweep rate" if rate_is_swept else "--" + next(iter(flags)).replace("_", "-")
            raise UsageError(f"{other} is of a load that is drawn, and --trace is a whole load")
        return None
    _check_drawn(flags.keys(), flags.get("arrivals"), rate_is_swept)
    if rate_is_swept:
        flags["rate"] = given.sweep.values[0]
    for flag, name in (("num_requests", "requests"), ("think", "think_s")):
        if flag in flags:
            flags[name] = flags.pop(flag)
    return loads.Recipe(**flags, seed=given.seed)


def _check_drawn(flags: Set[str], arrivals: str | None, rate_is_swept: bool) -> None:
    timed, bounded = rate_is_swept or "rate" in flags, flags & {"seconds", "num_requests"}
    prefixes = flags & {"prefix_groups", "prefix_tokens"}
    rules = {
        "a load is missing: give --trace FILE, or --rate with --seconds, or --num-requests": (
            timed or "num_requests" in flags
        ),
        "--seconds and --arrivals go with --rate": timed or not flags & {"seconds", "arrivals"},
        "a load that has a rate alone never ends: give --seconds or --num-requests": bool(bounded),
        "--arrivals ramp needs --seconds: by then it has come to its rate": (
            arrivals != loads.RAMP or "seconds" in flags
        ),
        "--burstiness goes with --arrivals bursty": (
            arrivals == loads.BURSTY or "burstiness" not in flags
        ),
        "--ramp-from goes with --arrivals ramp": arrivals == loads.RAMP or "ramp_from" not in flags,
        "--prefix-groups and --prefix-tokens go together": len(prefixes) != 1,
        "--think goes with --turns": "think" not in flags or "turns" in flags,
    }
    for rule, holds in rules.items():
        if not holds:
            raise UsageError(rule)


def check_files(given: Namespace) -> None:
    for name in ("requests", "html"):
        if given.sweep is not None and getattr(given, name) is not None:
            raise UsageError(f"--{name} is of one run, not of --sweep")
    written = given.requests, given.plot, given.html, None if given.json == STDOUT else given.json
    check_targets(written, (given.trace, given.model_config, given.profile))
    check_picture(given.plot)


def parser(command: str = "simulate", about: str = ABOUT) -> FlagParser:
    """Makes the parser; flags without a default in help are None if absent.

    `plan` replaces some flags.
    """
    flags = FlagParser(
        prog=f"{COMMAND} {command}",
        description=about,
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    costs = f"what steps cost, and the engine's limits [{DEFAULT_PROFILE}]"
    flags.add_argument("--profile", default=DEFAULT_PROFILE, metavar="NAME|FILE|auto", help=costs)

    add = flags.add_argument_group("What profile auto is made of").add_argument
    add("--device", help=f"one of {', '.join(DEVICES)}")
    add("--model-config", metavar="PATH", help="the model's config.json, or its folder")
    add(
        "--tensor-parallel-size",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="devices [1]",
    )
    add(
        "--vllm-version",
        default="",
        metavar="VERSION",
        help="whose engine; to 0.13 it waits for each step",
    )
    _add_load(flags)
    _add_fleet(flags)

    title = "Limits of the engine, vLLM's: the profile says what is not given"
    add = flags.add_argument_group(title).add_argument
    for name, least in ENGINE.items():
        limit = name.removesuffix("-override").replace("-", "_")
        add(f"--{name}", dest=limit, type=whole_number(least, MOST_TOKENS), metavar="N")
    for name in SWITCHES:
        add(f"--{name}", action=argparse.BooleanOptionalAction)
    _add_results(flags)
    return flags


def _add_load(flags: FlagParser) -> None:
    whole, rate = whole_number(1, MOST_TOKENS), partial(number_of, 0, summaries.MOST["rate"])
    add = flags.add_argument_group("A load from a file").add_argument
    add("--trace", type=Path, metavar="FILE[.gz]", help=TRACE_COLUMNS)

    add = flags.add_argument_group("A load that is drawn").add_argument
    add("--rate", type=rate(), help="requests a second; without it they are there from the start")
    add("--arrivals", choices=loads.ARRIVALS, help="how they come [poisson]")
    shape = "of bursty gaps: 1 is as poisson, less is burstier [0.25]"
    add("--burstiness", type=number_of(0.01, 1000, zero=True), metavar="SHAPE", help=shape)
    add(
        "--ramp-from",
        type=rate(zero=True),
        metavar="RATE",
        help="with which a ramp to --rate begins [0]",
    )
    lengths = partial(add, metavar="LENGTHS")
    lengths("--input-tokens", type=loads.lengths("input"), help="of prompts [1000:lognormal]")
    lengths("--output-tokens", type=loads.lengths("output"), help="of answers [128:lognormal]")
    add("--seconds", type=number_of(0, LONGEST_S), help="how long requests come")
    add("--num-requests", type=whole, metavar="N", help="how many come at the most")
    add("--prefix-groups", type=whole, metavar="N", help="groups whose prompts begin alike [none]")
    add(
        "--prefix-tokens",
        type=whole,
        metavar="N",
        help="with which they do, before the input tokens",
    )
    add(
        "--turns",
        type=whole_number(1, 1000),
        metavar="N",
        help="of sessions, which the rate counts [1]",
    )
    think = "from an answer until the next turn, on average [0]"
    add("--think", type=duration_of(86_400), metavar="DURATION", help=think)
    seed = "of load, routing and speculation [1]"
    add("--seed", type=whole_number(0, 1 << 31), default=1, metavar="N", help=seed)


def _add_fleet(flags: FlagParser) -> None:
    add = flags.add_argument_group("Client and fleet").add_argument
    places = "requests under way at the most; the next ones wait for a place [no limit]"
    add("--in-flight", type=whole_number(1, summaries.MOST["in-flight"]), metavar="N", help=places)
    pause = "from the end of a request until another one takes its place [0]"
    add("--turnaround", type=duration_of(3600), metavar="DURATION", help=pause)
    engines = partial(add, type=whole_number(1, summaries.MOST["pods"]), metavar="N")
    engines("--pods", help="engines [1]")
    add(
        "--policy",
        choices=POLICIES,
        default=RANDOM,
        help=f"which of them gets a request [{RANDOM}]",
    )

    add = flags.add_argument_group(
        "Disaggregated prefill: pods for prompts, others for answers"
    ).add_argument
    engines = partial(add, type=whole_number(1, summaries.MOST["pods"]), metavar="N")
    engines("--prefill-pods", help="engines that compute prompts")
    engines("--decode-pods", help="engines that pull the prompts' keys and values, and answer")
    link = (
        "bytes a second from a prefill to a decode pod, such as 50GB [50GB, a port of 400 Gbit/s]"
    )
    add("--transfer-bandwidth", type=size_of, metavar="SIZE", help=link)
    add(
        "--transfer-latency",
        type=duration_of(60),
        metavar="DURATION",
        help="added to each transfer [0]",
    )
    size = "keys and values of a token, on all devices of an engine [the profile's]"
    add("--kv-bytes-per-token", type=size_of, metavar="SIZE", help=size)

    title, interval = "Pods that join and leave", duration_of(3600, 0.1)
    add = flags.add_argument_group(title).add_argument
    policies = "hpa:metric=waiting,target=4,min=1,max=16, schedule:0s=2,1h=8 or a plugin's"
    add("--autoscale", metavar="POLICY", help=policies)
    cold = "from the start of a pod until it is ready: 90s, 40s+2GB/s or 40s+30GB@2GB/s for weights to read"
    add("--cold-start", metavar="DURATION", help=cold)
    add("--autoscale-every", type=interval, metavar="DURATION", help="between two looks [15s]")
    scrapes = "between two scrapes of a pod's metrics [15s]"
    add("--scrape-interval", type=interval, metavar="DURATION", help=scrapes)


def _add_results(flags: FlagParser) -> None:
    add = flags.add_argument_group("Results").add_argument
    add(
        "--json", type=Path, metavar="FILE", help="the figures; - is stdout, without the table then"
    )
    add(
        "--requests",
        type=Path,
        metavar="FILE.csv",
        help="moments of each request: send, first, last",
    )
    picture = "latency, batch and cache over time; of a sweep its curve"
    add("--plot", type=Path, metavar="FILE.png|FILE.svg", help=picture)
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="the run as a page to look through, moment by moment",
    )
    both = "two runs beside each other; each file has options of this command, by name"
    add("--compare", nargs=2, type=Path, metavar=("A.yaml", "B.yaml"), help=both)
    sweep = f"a run for each value of one of {', '.join(summaries.MOST)}"
    add("--sweep", type=as_argument(summaries.read_sweep), metavar="NAME=FROM:TO:STEP", help=sweep)
    goals = "such as ttft_p99=500ms,itl_p99=50ms"
    limits = "such as ttft:500 tpot:50 e2el:10000 in milliseconds; chat=ttft:500 for a class of the trace"
    add("--goodput", nargs="+", metavar="LIMIT", help=limits)
    price = "of an accelerator: the price of the run and of a million tokens"
    add("--gpu-hour-price", type=number_of(0, 1_000_000), metavar="PRICE", help=price)
    add(
        "--slo",
        type=as_argument(summaries.read_objectives),
        default=(),
        metavar="LIMITS",
        help=goals,
    )
    count = whole_number(1, 1024)
    own = "of sweeps [one a core]"
    add("--processes", type=count, default=usable_cores(), metavar="N", help=own)


@as_command()
def run(
    argv: Sequence[str],
    plugged: Plugged = lambda settings, profile: None,
    autoscalers: Autoscalers = lambda settings: {},
) -> int:
    """Returns the exit status.

    The functions return step costs and policies of plugins; by default none.
    """
    given, words = parser().parse_beside_settings(argv, plugins_only=True)

    def job_of(words: Sequence[str]) -> Job:
        own, settings = parser().parse_beside_settings([*argv, *words], plugins_only=True)
        return make_job(own, load(settings, {}), plugged, autoscalers)

    if given.compare is not None:
        _run_both(given, job_of)
        return 0
    job = make_job(given, load(words, {}), plugged, autoscalers)
    if given.plot is not None:
        check_installed("fleet", "--plot")
    if given.sweep is None:
        _run_once(job, given)
    else:
        _run_sweep(job, given, given.sweep)
    if given.profile == AUTO:
        print(f"profile auto: {job.plan.profile.checked}", file=sys.stderr)
    return 0


def read_load(job: Job) -> LoadTrace:
    """Returns the load; shows progress and rows that are left out."""
    recipe, trace = job.recipe, job.trace
    # The load's size, for progress: bytes of a trace, or expected requests.
    if recipe is not None:
        name, total, unit = "drawn", round(recipe.expected), "requests"
    else:
        name, total, unit = (
            "read",
            trace.stat().st_size if trace and trace.is_file() else 0,
            "bytes",
        )
    with progress_of(sys.stderr, name, total, unit) as progress:
        load = job.load(progress)
    if load.left_out:
        print(
            f"{load.origin}: {load.left_out:,} rows without an answer are left out", file=sys.stderr
        )
    return load


def _run_once(job: Job, given: Namespace) -> None:
    load, plan = read_load(job), job.plan
    title, film = job.title(load), None
    if given.html is not None:
        from app.lab.fidelity.film import Film  # and the console

        film = Film(load, plan, title)
    with progress_of(sys.stderr, "simulated", len(load), "requests") as progress:
        outcome, summary = job.run(load, progress, None if film is None else film.watch)
    if plan.autoscaling is not None:
        fleet = summaries.fleet_use(outcome, job.judgement, _best_constant(job, load, summary))
        summary = msgspec.structs.replace(summary, fleet=fleet)
    with written(
        given, summary, f"{job.head('')}\n{summaries.table(summary, job.judgement)}"
    ) as parts:
        if given.requests is not None:
            summaries.write_requests(parts.enter_context(whole_file(given.requests)), outcome)
        if film is not None:
            page = film.page(outcome)
            parts.enter_context(whole_file(given.html)).write_text(page, "utf-8")
        if given.plot is not None:
            part = parts.enter_context(whole_file(given.plot))
            pictures.draw_run(outcome, summary, job.judgement, title, part)


def _run_both(given: Namespace, job_of: Callable[[Sequence[str]], Job]) -> None:
    """Simulates two runs of one load seed; each YAML file adds options to the command line."""
    from app.console.page import comparison_of
    from app.lab.fidelity.film import Film  # and the console

    paths: list[Path] = given.compare
    if wrong := [
        name for name in ("sweep", "requests", "plot") if getattr(given, name) is not None
    ]:
        raise UsageError(f"--{wrong[0]} is of one run, not of --compare")
    if paths[0].resolve() == paths[1].resolve():
        raise UsageError(f"--compare: {paths[1]} is named twice")
    check_targets((given.html, None if given.json == STDOUT else given.json), given.compare)
    jobs = [_job_of_file(path, job_of) for path in paths]
    if len(seeds := {job.plan.seed for job in jobs}) > 1:
        raise ConfigError(
            f"--compare needs one seed for both runs, not {' and '.join(map(str, seeds))}"
        )
    runs, figures, own, heads = {}, [], {}, []
    names = [path.stem if paths[0].stem != paths[1].stem else str(path) for path in paths]
    for name, job in zip(names, jobs, strict=True):
        load = read_load(job)
        film = Film(load, job.plan, job.title(load))
        with progress_of(sys.stderr, name, len(load), "requests") as progress:
            outcome, own[name] = job.run(load, progress, film.watch)
        runs[name] = film.picture(outcome), film.frames(outcome)
        figures.append(RunFigures(name, summaries.figures_of(own[name], film.waits_s(outcome))))
        heads.append(f"{name}: {job.head('')}")
    its = compare(*figures)
    table = report.markdown([("", *runs, "difference"), *(row[:4] for row in its.rows)])
    document = {"better": its.better, "sentence": its.sentence, "runs": own}
    with written(given, document, "\n".join([its.sentence, *heads, table])) as parts:
        if given.html is not None:
            parts.enter_context(whole_file(given.html)).write_text(
                comparison_of(its, runs), "utf-8"
            )


def _job_of_file(path: Path, job_of: Callable[[Sequence[str]], Job]) -> Job:
    """Returns the job of a YAML file with options of this command.

    ConfigError, which names the file.
    """
    document, words = parse_yaml(str(path)), list[str]()
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: must be a mapping of options to values")
    for name, value in document.items():
        if name in ("compare", "html", "json", "requests", "plot", "sweep", "help"):
            raise ConfigError(f"{path}: {name} is of the whole comparison, not of one run")
        if value is None or isinstance(value, Mapping):
            raise ConfigError(f"{path}: {name} must be a value, or a list of values")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += (
                [f"--{name}", *map(str, value)]
                if isinstance(value, list)
                else [f"--{name}={value}"]
            )
    try:
        return job_of(words)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _best_constant(
    job: Job, load: LoadTrace, own: summaries.RunSummary
) -> summaries.RunSummary | None:
    """Finds the fewest constant pods that meet the objectives or, without these, have as much
    goodput.
    """
    assert job.plan.autoscaling is not None
    most, runs = job.plan.autoscaling.policy.most, dict[int, summaries.RunSummary]()

    def does_well(pods: int) -> bool:
        fleet = replace(job, plan=replace(job.plan, pods=pods, autoscaling=None))
        runs[pods] = its = fleet.run(load)[1]
        progress(len(runs))
        if (met := job.judgement.met(its)) is not None:
            return met
        return bool(its.goodput and own.goodput and its.goodput.good >= own.goodput.good)

    if not (job.judgement.objectives or own.goodput):
        return None
    with progress_of(sys.stderr, "compared", most.bit_length(), "fleets") as progress:
        return runs.get(1 + bisect_left(range(1, most + 1), True, key=does_well))


def _run_sweep(job: Job, given: Namespace, sweep: summaries.Sweep) -> None:
    # 0 prefill pods stands for as many ordinary ones.
    values = (*([0.0] if sweep.name == summaries.SPLIT else []), *sweep.values)
    jobs, points = [job.at(sweep.name, value) for value in values], list[summaries.Point]()
    load = None if sweep.name == "rate" else read_load(jobs[0])
    with (
        simulation.worker_pool(min(given.processes, len(jobs))) as pool,
        progress_of(sys.stderr, f"swept {sweep.name}", len(jobs), "points") as progress,
    ):
        results = simulation.each(pool, partial(_summary, load=load), jobs)
        for at, summary in zip(values, results, strict=True):
            meets_slo = job.judgement.met(summary)
            points.append(summaries.Point(value=at, meets_slo=meets_slo, summary=summary))
            progress(len(points))
    word, value = summaries.best(sweep.name, points, given.slo)
    text = f"{job.head(sweep.name)}\n{summaries.curve(sweep.name, points, given.slo)}"
    with written(given, {"sweep": sweep.name, word: value, "points": points}, text) as parts:
        if given.plot is not None:
            part = parts.enter_context(whole_file(given.plot))
            profile = job.plan.profile
            of = (
                f"{profile.model}, on {profile.device}"
                if job.profile_name == AUTO
                else job.profile_name
            )
            with picture_file(part, job.head(sweep.name).replace(job.profile_name, of, 1)) as axes:
                pictures.draw_curves(axes, sweep.name, points, given.slo)


def _summary(job: Job, load: LoadTrace | None) -> summaries.RunSummary:
    """Simulates a job, in this process or in a worker's."""
    return job.run(job.load() if load is None else load)[1]


@contextmanager
def written(given: Namespace, figures: object, text: str) -> Iterator[ExitStack]:
    """Yields a stack for files, which are all written or none; then prints the table, or figures
    for `-`.
    """
    document = msgspec.json.format(msgspec.json.encode(figures)) + b"\n"
    with ExitStack() as parts:
        yield parts
        if given.json is not None and given.json != STDOUT:
            parts.enter_context(whole_file(given.json)).write_bytes(document)
    print(document.decode() if given.json == STDOUT else f"{text}\n", end="")
