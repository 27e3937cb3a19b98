"""Flags of `simulate`, which `plan` extends."""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from math import ceil
from pathlib import Path

from config.declaration import COMMAND, UsageError
from config.flags import (
    FlagParser,
    as_argument,
    duration_of,
    number_of,
    size_of,
    token_count,
    whole_number,
)
from config.sections.engine import DEFAULT_PROFILE
from vllm_facts.devices import DEVICES
from vllm_facts.version import DEFAULT, FIRST, NEWEST
from workbench.engine.costs import (
    KV_CACHE_DTYPES,
    MAX_CAPTURE_SIZE,
    MOE_BACKENDS,
    read_speculation,
    read_version,
    read_watts,
)
from workbench.load.loads import MAX_LOAD_S, MAX_TOKENS
from workbench.load.policies import LEAST_REQUESTS, POLICIES
from workbench.load.priorities import read_priority
from workbench.load.synthetic import ARRIVALS, RAMP, lengths
from workbench.runs.adapters import read_adapters
from workbench.runs.column_traces import EXAMPLE, parse_columns
from workbench.runs.job_spec import JobSpec
from workbench.runs.kv_tiers import read_tier
from workbench.runs.summary import (
    DEFAULT_STATISTIC,
    STATISTICS,
    read_objectives,
)
from workbench.runs.sweeps import IN_FLIGHT, MAX_VALUES, PODS, RATE, read_sweep

ABOUT = """\
Simulate a load on an engine, or on a fleet of engines, in virtual time, with the same steps as a
server with timing steps (docs/simulate.md). The load is read from a trace or drawn. A DURATION is
60us, 250ms or 1.5s. LENGTHS are N, N:lognormal, N:lognormal:SIGMA, N:uniform (0.5 N to 1.5 N),
LOW-HIGH or sharegpt, and N may be 2k. With --plugin NAME, the settings of the plugin are flags.
"""
MODEL_HELP = (
    "name of a common model, such as Qwen/Qwen3-32B, or the path of a config.json or its folder"
)
DEFAULTS = JobSpec()
DEFAULT_SECONDS = 60
"""Time for which requests arrive at a rate, without another end."""
DEFAULT_REQUESTS = 100
"""Number of requests on average for which a load with a lower rate goes on."""
MIN_ENGINE_LIMITS = {
    "max-num-seqs": 1,
    "max-num-batched-tokens": 1,
    "num-gpu-blocks-override": 2,
    "block-size": 1,
    "max-model-len": 1,
    "long-prefill-token-threshold": 0,
    "prefill-schedule-interval": 1,
}
"""Limits of vLLM's engine, each with its least value."""
LIMIT_FLAG = re.compile(
    r"--(?:max-|slo-)?(?:(?P<before>mean|p\d+(?:\.\d+)?)-)?(?P<latency>ttft|tpot|itl|e2el?)"
    r"(?:-(?P<after>mean|p\d+(?:\.\d+)?))?"
)
"""Flags of other programs for limits of latencies; here they are values of `--slo`."""
ENGINE_SWITCHES = ("enable-chunked-prefill", "enable-prefix-caching", "async-scheduling")
TRACE_HELP = (
    "CSV file with the columns arrival_s, input_tokens, and output_tokens; optional: prefix_group"
    " and prefix_tokens for shared prefixes, session and think_s for sessions, class for --goodput."
    " Or a trace of Azure, BurstGPT, Mooncake, Bailian, Dynamo or AgentX (Weka), spans of"
    " OpenTelemetry (OTLP as JSON), a result of vllm bench serve, GuideLLM or AIPerf, or a"
    " specification of inference-perf"
)


class SimulateParser(FlagParser):
    """A parser that knows what a flag such as `--ttft-p95` means."""

    def _check(self, words: Sequence[str], forms: Iterable[str]) -> None:
        for word in takewhile("--".__ne__, words):
            match = LIMIT_FLAG.fullmatch(word.partition("=")[0].replace("_", "-").lower())
            if match is None:
                continue
            latency = match["latency"].replace("e2el", "e2e")
            statistic = match["before"] or match["after"] or DEFAULT_STATISTIC
            if statistic not in STATISTICS:
                statistic = DEFAULT_STATISTIC
            raise UsageError(
                f"unknown flag {word.partition('=')[0]}; use --slo {latency}_{statistic}=DURATION,"
                f" such as --slo {latency}_{statistic}=500ms"
            )
        super()._check(words, forms)


def default_seconds(spec: JobSpec) -> int | None:
    """Returns the seconds for which the requests of a drawn load arrive if no flag sets an end."""
    rate = spec.rate
    if spec.sweep is not None and spec.sweep.name == RATE:
        rate = min(spec.sweep.values)
    if not rate or spec.seconds is not None or spec.num_requests is not None:
        return None
    if spec.trace is not None or spec.study is not None or spec.arrivals == RAMP:
        return None
    return min(MAX_LOAD_S, max(DEFAULT_SECONDS, ceil(DEFAULT_REQUESTS / rate)))


def make_parser(command: str = "simulate", about: str = ABOUT) -> FlagParser:
    """Makes the parser. Flags whose help does not name a default are None if absent.

    The command `plan` replaces some flags.
    """
    flags = SimulateParser(
        prog=f"{COMMAND} {command}",
        description=about,
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    flags.examples = (
        f"{COMMAND} simulate --rate 10 --seconds 60 --slo ttft_p99=500ms",
        f"{COMMAND} simulate --sweep rate=4:12:4 --seconds 60 --slo ttft_p99=500ms",
    )
    flags.add_argument(
        "--profile",
        metavar="NAME|FILE|auto",
        help=f"costs of steps and limits of the engine [auto with --device or --model, else"
        f" {DEFAULT_PROFILE}]",
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
        "-tp",
        type=whole_number(1, 1024),
        default=DEFAULTS.tensor_parallel_size,
        metavar="N",
        help="devices that share each layer [1]",
    )
    _add_engine_options(add)


def _add_engine_options(add: Callable[..., argparse.Action]) -> None:
    """Adds options of `vllm serve` that decide costs and memory of profile auto."""
    add(
        "--pipeline-parallel-size",
        "-pp",
        type=whole_number(1, 1024),
        default=DEFAULTS.pipeline_parallel_size,
        metavar="N",
        help="stages, each with a part of the layers [1]",
    )
    add(
        "--data-parallel-size",
        "-dp",
        type=whole_number(1, 1024),
        default=DEFAULTS.data_parallel_size,
        metavar="N",
        help="ranks that compute attention separately and share the experts [1]",
    )
    add(
        "--enable-expert-parallel",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.enable_expert_parallel,
        help="place whole experts on each device, instead of a part of each expert",
    )
    add(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default=DEFAULTS.kv_cache_dtype,
        help="format of keys and values; auto uses the format of the checkpoint, or 16 bits [auto]",
    )
    add(
        "--quantization",
        "-q",
        default=DEFAULTS.quantization,
        metavar="METHOD",
        help="convert 16-bit weights to fp8 or bitsandbytes [the format of the model]",
    )
    add(
        "--gpu-memory-utilization",
        type=number_of(0, 1),
        metavar="SHARE",
        help="share of the memory that vLLM uses [0.92; 0.9 up to vLLM 0.19]",
    )
    add(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.enforce_eager,
        help="run without CUDA graphs",
    )
    add(
        "--max-cudagraph-capture-size",
        type=whole_number(0, 1 << 20),
        default=DEFAULTS.max_cudagraph_capture_size,
        metavar="TOKENS",
        help=f"most tokens of a step that runs as a CUDA graph [{MAX_CAPTURE_SIZE}]",
    )
    add(
        "--moe-backend",
        choices=MOE_BACKENDS,
        default=DEFAULTS.moe_backend,
        help="kernels of experts: the choice of vLLM for the device, or Triton [auto]",
    )
    add(
        "--vllm-version",
        type=as_argument(read_version),
        default=DEFAULTS.vllm_version,
        metavar="VERSION",
        help=f"version of vLLM that is simulated, from {FIRST} to {NEWEST} [{DEFAULT}]",
    )


def _add_load(flags: FlagParser) -> None:
    add = flags.add_argument_group("Load from a file").add_argument
    count = whole_number(1, MAX_TOKENS)
    add("--trace", type=Path, metavar="FILE[.gz]", help=TRACE_HELP)
    add(
        "--study",
        type=Path,
        metavar="FOLDER",
        help="study of a running fleet, as study take writes it",
    )
    add(
        "--trace-block-size",
        type=whole_number(1, 1 << 20),
        metavar="TOKENS",
        help="tokens of a prompt to each hash of a trace [as the trace says, or from its rows]",
    )
    add(
        "--trace-columns",
        type=as_argument(parse_columns),
        metavar="NAME=COLUMN,...",
        help="columns of a CSV or JSON lines file in any format: time, input, output, and"
        f" perhaps end and session, such as {EXAMPLE}",
    )
    add(
        "--conversations",
        type=count,
        metavar="N",
        help="maximum number of agent conversations that run at the same time [all]",
    )

    max_rate = MAX_VALUES[RATE]
    add = flags.add_argument_group("Drawn load").add_argument
    add(
        "--rate",
        type=number_of(0, max_rate),
        help="requests per second; without a rate, all requests arrive at the start",
    )
    add("--arrivals", choices=ARRIVALS, help="distribution of arrivals [poisson]")
    add(
        "--burstiness",
        type=number_of(0.01, 1000, zero=True),
        metavar="SHAPE",
        help="shape of bursty gaps: 1 equals poisson, lower values are burstier [0.25]",
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
    add(
        "--seconds",
        type=number_of(0, MAX_LOAD_S),
        help=f"seconds during which requests arrive; without --num-requests [{DEFAULT_SECONDS}, or"
        f" more for {DEFAULT_REQUESTS} requests]",
    )
    add("--num-requests", type=count, metavar="N", help="maximum number of requests")
    add(
        "--prefix-groups",
        type=count,
        metavar="N",
        help="groups of prompts that share a prefix [none]",
    )
    add(
        "--prefix-tokens",
        type=token_count(1, MAX_TOKENS),
        metavar="N",
        help="tokens of the shared prefix, added before the input tokens",
    )
    add(
        "--turns",
        type=whole_number(1, 1000),
        metavar="N",
        help="turns of each session; --rate then counts sessions [1]",
    )
    add(
        "--think",
        type=duration_of(86_400),
        metavar="DURATION",
        help="mean time between an answer and the next turn [0]",
    )
    add(
        "--seed",
        type=whole_number(0, 1 << 31),
        default=DEFAULTS.seed,
        metavar="N",
        help="seed of load, routing, and speculation [1]",
    )


def _add_fleet(flags: FlagParser) -> None:
    add = flags.add_argument_group("Client and fleet").add_argument
    add(
        "--in-flight",
        type=whole_number(1, MAX_VALUES[IN_FLIGHT]),
        metavar="N",
        help="maximum number of requests in flight; others wait at the client [no limit]",
    )
    add(
        "--turnaround",
        type=duration_of(3600),
        metavar="DURATION",
        help="time between the end of a request and the next request [0]",
    )
    add("--pods", type=whole_number(1, MAX_VALUES[PODS]), metavar="N", help="number of engines [1]")
    add(
        "--policy",
        choices=POLICIES,
        default=DEFAULTS.policy,
        help=f"routing policy [{LEAST_REQUESTS}]",
    )


def _add_disaggregation(flags: FlagParser) -> None:
    title = "Disaggregated prefill: separate pods for prompts and for answers"
    add = flags.add_argument_group(title).add_argument
    pods = whole_number(1, MAX_VALUES[PODS])
    add("--prefill-pods", type=pods, metavar="N", help="number of engines that compute prompts")
    add(
        "--decode-pods",
        type=pods,
        metavar="N",
        help="number of engines that pull the keys and values of prompts, and answer",
    )
    add(
        "--transfer-bandwidth",
        type=size_of,
        metavar="SIZE",
        help="bytes per second from a prefill pod to a decode pod [50GB, a port of 400 Gbit/s]",
    )
    add(
        "--transfer-latency",
        type=duration_of(60),
        metavar="DURATION",
        help="time added to each transfer [0]",
    )
    add(
        "--kv-bytes-per-token",
        type=size_of,
        metavar="SIZE",
        help="bytes of the keys and values of a token, on all devices of an engine"
        " [as in the profile]",
    )


def _add_autoscaling(flags: FlagParser) -> None:
    add = flags.add_argument_group("Autoscaling").add_argument
    interval = duration_of(3600, 0.1)
    add(
        "--autoscale",
        metavar="POLICY",
        help="policy: hpa:metric=waiting,target=4,min=1,max=16, schedule:0s=2,1h=8 or the policy"
        " of a plugin",
    )
    add(
        "--cold-start",
        metavar="DURATION",
        help="time until a new pod is ready: 90s, or with the time to read the weights 40s+2GB/s or"
        " 40s+30GB@2GB/s",
    )
    add(
        "--autoscale-every",
        type=interval,
        metavar="DURATION",
        help="time between two decisions of the autoscaler [15s]",
    )
    add(
        "--scrape-interval",
        type=interval,
        metavar="DURATION",
        help="time between two scrapes of the metrics of a pod [15s]",
    )


def _add_engine(flags: FlagParser) -> None:
    title = "Limits of the engine, as in vLLM; the defaults are those of the profile"
    add = flags.add_argument_group(title).add_argument
    for name, minimum in MIN_ENGINE_LIMITS.items():
        field = name.removesuffix("-override").replace("-", "_")
        add(
            f"--{name}",
            dest=field,
            type=token_count(minimum, MAX_TOKENS),
            metavar="N",
            help=f"vLLM's {name} option [as in the profile]",
        )
    for name in ENGINE_SWITCHES:
        add(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            help=f"vLLM's {name} option [as in the profile]",
        )
    adapters = whole_number(1, 10_000)
    add(
        "--loras",
        type=as_argument(read_adapters),
        nargs="+",
        metavar="N|NAME=SHARE%",
        help="number of LoRA adapters; each request uses a random one (profile auto only);"
        " or the share of the requests for each adapter, such as sql=70%% chat=30%%",
    )
    add(
        "--max-loras",
        type=adapters,
        metavar="N",
        help="maximum number of adapters in a step, as in vLLM [1]",
    )
    add(
        "--max-lora-rank",
        type=whole_number(1, 1024),
        metavar="N",
        help="rank of the adapters [16]",
    )
    add(
        "--kv-tiers",
        nargs="+",
        type=as_argument(read_tier),
        metavar="NAME=SIZE@BANDWIDTH/s",
        help="tiers of each pod that keep the blocks of prompts, as vLLM's OffloadingConnector: the"
        " host's memory, and then a disk, such as cpu=200GB@50GB/s disk=2TB@6GB/s",
    )
    add(
        "--kv-offload-policy",
        choices=("lru", "arc"),
        default=DEFAULTS.kv_offload_policy,
        help="eviction policy of the first tier [lru]",
    )
    add(
        "--kv-offload-store-threshold",
        type=whole_number(0, MAX_TOKENS),
        default=DEFAULTS.kv_offload_store_threshold,
        metavar="N",
        help="requests that must contain a block before the first tier stores it [0]",
    )
    add(
        "--priorities",
        nargs="+",
        type=as_argument(read_priority),
        metavar="CLASS=PRIORITY",
        help="scheduling policy priority: lower numbers first, such as chat=0 batch=10 for the"
        " classes of a trace, or chat=0@30%% batch=10@70%% for a drawn load",
    )
    add(
        "--speculative-config",
        type=as_argument(read_speculation),
        metavar="JSON",
        help="speculative decoding, with synthetic acceptance or a model whose accepted length is"
        " public; profile auto computes the time of drafts [as in the profile]",
    )


def _add_results(flags: FlagParser) -> None:
    add = flags.add_argument_group("Results").add_argument
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures as JSON; - writes to stdout instead of the table",
    )
    add(
        "--requests",
        type=Path,
        metavar="FILE.csv",
        help="write a row for each request, with the times of sending, first token, and last token",
    )
    add(
        "--plot",
        type=Path,
        metavar="FILE.png|FILE.svg",
        help="draw latency, batch, and cache over time, or the curve of a sweep",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="write a page that shows the run moment by moment",
    )
    add(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A.yaml", "B.yaml"),
        help="compare two runs; each file contains options of this command by name",
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
        help="limits of each request in milliseconds, such as ttft:500 tpot:50 e2el:10000;"
        " chat=ttft:500 for a class of the trace",
    )
    add(
        "--gpu-hour-price",
        type=number_of(0, 1_000_000),
        metavar="PRICE",
        help="price of an accelerator per hour; prints the price of the run",
    )
    add(
        "--device-watts",
        type=as_argument(read_watts),
        metavar="auto|LOW-HIGH",
        help="print the energy, computed from the power of a device with one request and"
        " with many; auto uses measured ranges, which exist for some devices",
    )
    add(
        "--slo",
        type=as_argument(read_objectives),
        default=DEFAULTS.slo,
        metavar="LIMITS",
        help="objectives of the run, such as ttft_p95=500ms,tpot_p99=50ms,itl_p99.9=200ms; itl is"
        " each gap between tokens, tpot the mean gap of a request",
    )
    add(
        "--processes",
        type=whole_number(1, 1024),
        default=DEFAULTS.processes,
        metavar="N",
        help="processes to use for a sweep, or in simulate for a long run of a fleet without"
        " prefix-aware routing [one per core]",
    )
