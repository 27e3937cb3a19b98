"""Flags of `simulate`, which `plan` extends."""

import argparse
from collections.abc import Callable
from pathlib import Path

from app.core.base.cores import usable_cores
from app.extensions.lab.costs.devices import DEVICES
from app.extensions.lab.costs.engine_options import AUTO_DTYPE, KV_CACHE_DTYPES
from app.extensions.lab.fidelity.summary import read_objectives
from app.extensions.lab.fidelity.sweeps import IN_FLIGHT, MAX_VALUES, PODS, RATE, read_sweep
from app.extensions.lab.load.loads import MAX_LOAD_S, MAX_TOKENS
from app.extensions.lab.load.policies import POLICIES, RANDOM
from app.extensions.lab.load.synthetic import ARRIVALS, lengths
from config.declaration import COMMAND
from config.flags import FlagParser, as_argument, duration_of, number_of, size_of, whole_number
from config.sections.engine import DEFAULT_PROFILE
from config.speculative import synthetic_drafts

ABOUT = """\
Simulate a load on an engine, or on a fleet of engines, on virtual time, with the steps that a
server with timing steps makes (docs/fidelity.md). The load is a trace, or it is drawn. A DURATION
is 60us, 250ms or 1.5s. LENGTHS are N, N:lognormal, N:lognormal:SIGMA, N:uniform (half to three
halves of N), LOW-HIGH or sharegpt. With --plugin NAME the settings of the plugin are flags, too.
"""
MODEL_HELP = (
    "name of a common model, such as Qwen/Qwen3-32B, or the path of a config.json or its folder"
)
MIN_ENGINE_LIMITS = {
    "max-num-seqs": 1,
    "max-num-batched-tokens": 1,
    "num-gpu-blocks-override": 2,
    "block-size": 1,
    "max-model-len": 1,
    "long-prefill-token-threshold": 0,
}
"""Limits of vLLM's engine, each with its least value."""
ENGINE_SWITCHES = ("enable-chunked-prefill", "enable-prefix-caching", "async-scheduling")
TRACE_HELP = (
    "columns arrival_s, input_tokens, output_tokens; for prompts with shared prefixes also"
    " prefix_group and prefix_tokens; for sessions also session and think_s; class for --goodput;"
    " other columns are ignored. Or a trace of Azure, BurstGPT or Mooncake, or a result of vllm"
    " bench serve, guidellm or aiperf"
)


def make_parser(command: str = "simulate", about: str = ABOUT) -> FlagParser:
    """Makes the parser. Flags whose help does not name a default are None if absent.

    The command `plan` replaces some flags.
    """
    flags = FlagParser(
        prog=f"{COMMAND} {command}",
        description=about,
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    flags.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="NAME|FILE|auto",
        help=f"costs of steps, and limits of the engine [{DEFAULT_PROFILE}]",
    )
    _add_device(flags)
    _add_load(flags)
    _add_fleet(flags)
    _add_disaggregation(flags)
    _add_autoscaling(flags)
    _add_engine(flags)
    _add_results(flags)
    return flags


def _add_device(flags: FlagParser) -> None:
    add = flags.add_argument_group("Model and device, for profile auto").add_argument
    add("--device", help=f"one of {', '.join(DEVICES)}")
    add(
        "--model",
        "--model-config",
        dest="model_config",
        metavar="NAME|PATH",
        help=MODEL_HELP,
    )
    add(
        "--tensor-parallel-size",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="number of devices that share each layer [1]",
    )
    _add_engine_options(add)


def _add_engine_options(add: Callable[..., argparse.Action]) -> None:
    """Adds options of `vllm serve` that decide costs and memory of profile auto."""
    add(
        "--pipeline-parallel-size",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="stages that each have a part of the layers [1]",
    )
    add(
        "--data-parallel-size",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="ranks with attention of their own, which share the experts [1]",
    )
    add(
        "--enable-expert-parallel",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="whole experts on each device, instead of a part of each expert",
    )
    add(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default=AUTO_DTYPE,
        help="format of keys and values; auto is that of the checkpoint, or 16 bits [auto]",
    )
    add(
        "--quantization",
        default="",
        metavar="METHOD",
        help="format to convert 16-bit weights to: fp8 or bitsandbytes [that of the model]",
    )
    add(
        "--gpu-memory-utilization",
        type=number_of(0, 1),
        metavar="SHARE",
        help="share of the memory that vLLM takes [0.92; 0.9 up to vLLM 0.20]",
    )
    add(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="no CUDA graphs",
    )
    add(
        "--vllm-version",
        default="",
        metavar="VERSION",
        help="version of vLLM, from 0.11 on; up to 0.13 its engine waits for each step",
    )


def _add_load(flags: FlagParser) -> None:
    add = flags.add_argument_group("Load from a file").add_argument
    add("--trace", type=Path, metavar="FILE[.gz]", help=TRACE_HELP)

    count = whole_number(1, MAX_TOKENS)
    max_rate = MAX_VALUES[RATE]
    add = flags.add_argument_group("Drawn load").add_argument
    add(
        "--rate",
        type=number_of(0, max_rate),
        help="requests per second; without a rate all arrive at the start",
    )
    add("--arrivals", choices=ARRIVALS, help="distribution of arrivals [poisson]")
    add(
        "--burstiness",
        type=number_of(0.01, 1000, zero=True),
        metavar="SHAPE",
        help="shape of bursty gaps: 1 is as poisson, less is burstier [0.25]",
    )
    add(
        "--ramp-from",
        type=number_of(0, max_rate, zero=True),
        metavar="RATE",
        help="rate at the start of a ramp, which ends at --rate [0]",
    )
    add(
        "--input-tokens",
        type=lengths("input"),
        metavar="LENGTHS",
        help="lengths of prompts [1000:lognormal]",
    )
    add(
        "--output-tokens",
        type=lengths("output"),
        metavar="LENGTHS",
        help="lengths of answers [128:lognormal]",
    )
    add("--seconds", type=number_of(0, MAX_LOAD_S), help="time in which requests arrive")
    add("--num-requests", type=count, metavar="N", help="most requests")
    add(
        "--prefix-groups",
        type=count,
        metavar="N",
        help="groups whose prompts share a prefix [none]",
    )
    add(
        "--prefix-tokens",
        type=count,
        metavar="N",
        help="tokens of the shared prefix, before the input tokens",
    )
    add(
        "--turns",
        type=whole_number(1, 1000),
        metavar="N",
        help="turns of each session; the rate is of sessions then [1]",
    )
    add(
        "--think",
        type=duration_of(86_400),
        metavar="DURATION",
        help="mean time from an answer until the next turn [0]",
    )
    add(
        "--seed",
        type=whole_number(0, 1 << 31),
        default=1,
        metavar="N",
        help="seed of load, routing and speculation [1]",
    )


def _add_fleet(flags: FlagParser) -> None:
    add = flags.add_argument_group("Client and fleet").add_argument
    add(
        "--in-flight",
        type=whole_number(1, MAX_VALUES[IN_FLIGHT]),
        metavar="N",
        help="most requests in flight; the next ones wait for a place [no limit]",
    )
    add(
        "--turnaround",
        type=duration_of(3600),
        metavar="DURATION",
        help="time from the end of a request until the next request takes its place [0]",
    )
    add("--pods", type=whole_number(1, MAX_VALUES[PODS]), metavar="N", help="engines [1]")
    add(
        "--policy",
        choices=POLICIES,
        default=RANDOM,
        help=f"routing policy [{RANDOM}]",
    )


def _add_disaggregation(flags: FlagParser) -> None:
    title = "Disaggregated prefill: separate pods for prompts and for answers"
    add = flags.add_argument_group(title).add_argument
    pods = whole_number(1, MAX_VALUES[PODS])
    add("--prefill-pods", type=pods, metavar="N", help="engines that compute prompts")
    add(
        "--decode-pods",
        type=pods,
        metavar="N",
        help="engines that pull the prompts' keys and values, and answer",
    )
    add(
        "--transfer-bandwidth",
        type=size_of,
        metavar="SIZE",
        help="bytes per second from a prefill to a decode pod, such as 50GB"
        " [50GB, a port of 400 Gbit/s]",
    )
    add(
        "--transfer-latency",
        type=duration_of(60),
        metavar="DURATION",
        help="added to each transfer [0]",
    )
    add(
        "--kv-bytes-per-token",
        type=size_of,
        metavar="SIZE",
        help="keys and values of a token, on all devices of an engine [the profile's]",
    )


def _add_autoscaling(flags: FlagParser) -> None:
    add = flags.add_argument_group("Autoscaling").add_argument
    interval = duration_of(3600, 0.1)
    add(
        "--autoscale",
        metavar="POLICY",
        help="hpa:metric=waiting,target=4,min=1,max=16, schedule:0s=2,1h=8 or a plugin's",
    )
    add(
        "--cold-start",
        metavar="DURATION",
        help="time from the start of a pod until it is ready: 90s, 40s+2GB/s or 40s+30GB@2GB/s for"
        " weights to read",
    )
    add(
        "--autoscale-every",
        type=interval,
        metavar="DURATION",
        help="time between two looks of the autoscaler [15s]",
    )
    add(
        "--scrape-interval",
        type=interval,
        metavar="DURATION",
        help="time between two scrapes of a pod's metrics [15s]",
    )


def _add_engine(flags: FlagParser) -> None:
    title = "Limits of vLLM's engine; by default those of the profile"
    add = flags.add_argument_group(title).add_argument
    for name, minimum in MIN_ENGINE_LIMITS.items():
        field = name.removesuffix("-override").replace("-", "_")
        add(f"--{name}", dest=field, type=whole_number(minimum, MAX_TOKENS), metavar="N")
    for name in ENGINE_SWITCHES:
        add(f"--{name}", action=argparse.BooleanOptionalAction)
    add(
        "--speculative-config",
        type=as_argument(synthetic_drafts),
        metavar="JSON",
        help="speculative decoding with rejection_sample_method synthetic [the profile's rates]",
    )


def _add_results(flags: FlagParser) -> None:
    add = flags.add_argument_group("Results").add_argument
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures as JSON; - is stdout, without the table",
    )
    add(
        "--requests",
        type=Path,
        metavar="FILE.csv",
        help="write the times of each request: send, first, last",
    )
    add(
        "--plot",
        type=Path,
        metavar="FILE.png|FILE.svg",
        help="draw latency, batch and cache over time, or the curve of a sweep",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="write the run as a page that shows it over time",
    )
    add(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A.yaml", "B.yaml"),
        help="compare two runs; each file has options of this command, by name",
    )
    add(
        "--sweep",
        type=as_argument(read_sweep),
        metavar="NAME=FROM:TO:STEP",
        help=f"simulate each value of one of {', '.join(MAX_VALUES)}",
    )
    add(
        "--goodput",
        nargs="+",
        metavar="LIMIT",
        help="limits of single requests, such as ttft:500 tpot:50 e2el:10000 in milliseconds;"
        " chat=ttft:500 for a class of the trace",
    )
    add(
        "--gpu-hour-price",
        type=number_of(0, 1_000_000),
        metavar="PRICE",
        help="price of an accelerator for an hour, for the price of the run",
    )
    add(
        "--slo",
        type=as_argument(read_objectives),
        default=(),
        metavar="LIMITS",
        help="objectives of the run, such as ttft_p95=500ms,tpot_p99=50ms,itl_p99.9=200ms; itl is"
        " each gap between tokens, tpot the mean of a request",
    )
    add(
        "--processes",
        type=whole_number(1, 1024),
        default=usable_cores(),
        metavar="N",
        help="processes of sweeps [one per core]",
    )
