"""Flags of `plan`: those of `simulate`, some with several values, some left out."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from config.declaration import COMMAND, suggestion
from config.flags import (
    AddArgument,
    FlagParser,
    as_argument,
    duration_of,
    number_of,
    token_count,
    whole_number,
)
from vllm_facts.devices import DEVICES
from workbench.load.loads import MAX_TOKENS
from workbench.load.study_folder import ACCEPT_FLAG
from workbench.plan.change_flags import add_change_flags
from workbench.plan.list_prices import LIST_DATE, LIST_PRICES
from workbench.runs import simulate_flags
from workbench.runs.sweeps import MAX_VALUES, PODS, RATE

ABOUT = """\
Find the cheapest fleet that meets an SLO (docs/planning.md): device, tensor-parallel size, pods and
limits of the engine, for each load. Bounds exclude what cannot meet the SLO or is too dear; the
other fleets are simulated. Loads are described as for simulate.

With --study FOLDER and without an SLO, changes of a measured fleet are compared with today
(docs/decide.md): those of --what-if, or the fewest pods with which no mean latency rises by more
than --max-rise, with their risk. Flags of simulate then describe the engine of today.
"""
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
CONSIDERED_SEQUENCES = (256, 64, 1024)
CONSIDERED_TOKENS = (8192, 2048, 16384)
"""Values beside vLLM's default for the device, which is tried first; others may save a pod."""
PREFILL_SHARES = (0.25, 0.4, 0.6)
EXCLUDED_FLAGS = (
    "profile",
    "pods",
    "prefill-pods",
    "decode-pods",
    "autoscale",
    "cold-start",
    "autoscale-every",
    "scrape-interval",
    "sweep",
    "compare",
    "requests",
    "gpu-hour-price",
)
"""Flags of simulate that plan sets or does not have."""
DEFAULT_LOAD_S = float(simulate_flags.DEFAULT_SECONDS)
"""Length of a load that is given only by its rate, in seconds."""
DEFAULT_WINDOW_S = 60.0
MIN_CONFIDENCE = 50
MAX_CONFIDENCE = 99
DASK = "dask="
PRICE_LIST = re.compile(r"[a-z0-9.-]{1,40}")


def make_parser() -> FlagParser:
    """Makes the parser."""
    flags = simulate_flags.make_parser("plan", ABOUT)
    flags.examples = (
        f"{COMMAND} plan --model Qwen/Qwen3-8B --device h100 l40s --rate 5 --slo ttft_p95=1s",
        f"{COMMAND} plan --study prod",
        f"{COMMAND} plan --study prod --what-if pods-1 'rate x2' device=h200",
    )
    for name in EXCLUDED_FLAGS:
        flags.add_argument(
            f"--{name}",
            type=as_argument(_reject),
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    add = flags.add_argument_group("Plan").add_argument
    _add_candidates(add)
    _add_loads(add)
    add(
        "--why",
        action="store_true",
        help="print all reasons, and the commands of all fleets of the table",
    )
    add(
        "--attainment",
        type=number_of(0, 1),
        default=0.99,
        metavar="SHARE",
        help="share of requests that meet the limits of --goodput [0.99]",
    )
    add(
        "--confidence",
        type=as_argument(_read_confidence),
        metavar="PERCENT",
        help="probability with which the fleet meets the SLO, such as 90%%, by the errors of"
        " measured servers [take the simulation as exact]",
    )
    add(
        "--together",
        action="store_true",
        help="each model serves one of the loads, in order; all models share a fleet",
    )
    add(
        "--over-time",
        nargs="?",
        const=DEFAULT_WINDOW_S,
        type=duration_of(86_400, 1.0),
        metavar="WINDOW",
        help="print the smallest number of accelerators for each window of the load, as "
        "with a perfect"
        " autoscaler, instead of a constant fleet [60s]",
    )
    add(
        "--max-pods",
        type=whole_number(1, MAX_VALUES[PODS]),
        default=64,
        metavar="N",
        help="most pods to consider [64]",
    )
    add(
        "--plot",
        type=Path,
        metavar="FILE.png|FILE.svg",
        help="draw price and latency of the fleets, with their Pareto front",
    )
    add(
        "--backend",
        type=as_argument(_read_backend),
        metavar=f"{DASK}HOST:PORT",
        help="simulate on a Dask cluster instead of this machine",
    )
    title = "Changes of a measured fleet, with --study and without an SLO"
    add_change_flags(flags.add_argument_group(title).add_argument)
    return flags


def _add_candidates(add: AddArgument) -> None:
    """Adds the devices, the model and the engine's flags that plan combines into fleets."""
    add(
        "--device",
        default=[
            DevicePrice(name, listed.price, is_listed=True) for name, listed in LIST_PRICES.items()
        ],
        nargs="+",
        type=as_argument(_read_price),
        metavar="DEVICE[[@LIST]=PRICE[/N]]",
        help="devices to consider, with their price per hour: DEVICE=PRICE,"
        " DEVICE@LIST=PRICE for a price list such as spot, and PRICE/N for nodes of N devices that"
        f" are rented as a whole; without a price, the list price of {LIST_DATE} counts for"
        f" {', '.join(LIST_PRICES)}; devices are {', '.join(DEVICES)} [all with a list price]",
    )
    add(
        "--model",
        "--model-config",
        dest="model_configs",
        required=True,
        nargs="+",
        metavar="NAME|PATH",
        help=f"{simulate_flags.MODEL_HELP}; of several, the cheapest is chosen",
    )
    count = whole_number(1, MAX_TOKENS)
    add(
        "--tensor-parallel-size",
        "-tp",
        nargs="+",
        type=count,
        default=TENSOR_PARALLEL_SIZES,
        metavar="N",
        help=f"values to consider [{_words(TENSOR_PARALLEL_SIZES)}]",
    )
    for name, values in (
        ("max-num-seqs", CONSIDERED_SEQUENCES),
        ("max-num-batched-tokens", CONSIDERED_TOKENS),
    ):
        add(
            f"--{name}",
            nargs="+",
            type=token_count(1, MAX_TOKENS),
            metavar="N",
            help=f"values to consider [vLLM's default on the device, then {_words(values)}]",
        )
    add(
        "--prefill-share",
        nargs="+",
        type=number_of(0, 1, zero=True),
        default=PREFILL_SHARES,
        metavar="SHARE",
        help="shares of the pods that only prefill, to consider; 0 is none"
        f" [{_words(PREFILL_SHARES)}]",
    )


def _words(values: Sequence[float]) -> str:
    """Returns the values with spaces between them."""
    return " ".join(map(str, values))


def _add_loads(add: AddArgument) -> None:
    add(
        "--rate",
        nargs="+",
        type=number_of(0, MAX_VALUES[RATE]),
        help="requests per second; each value is a load, of"
        f" {DEFAULT_LOAD_S:g} s without --seconds and --num-requests",
    )
    add("--trace", nargs="+", type=Path, metavar="FILE", help="traces; each is a load")
    add(
        ACCEPT_FLAG,
        action="store_true",
        help="plan even if the errors of study compare are above its limit, or are not known",
    )


def _reject(text: str) -> None:
    raise ValueError("cannot be used, because the plan command sets this value")


class DevicePrice(NamedTuple):
    """Price of a device in a price list."""

    device: str
    price: float
    """For an hour of one device."""
    is_listed: bool = False
    """True for a built-in list price."""
    price_list: str = ""
    node_devices: int = 1
    """Devices that are rented together."""

    @property
    def label(self) -> str:
        """Name of the device in results."""
        if not self.price_list:
            return self.device
        return f"{self.device}@{self.price_list}"


def _read_price(text: str) -> DevicePrice:
    label, equals, price_text = text.lower().partition("=")
    name, separator, price_list = label.partition("@")
    if name not in DEVICES:
        raise ValueError(
            f"must be DEVICE or DEVICE=PRICE, where DEVICE is one of {', '.join(DEVICES)}"
            f"{suggestion(name, DEVICES)}"
        )
    if not equals and label in LIST_PRICES:
        return DevicePrice(name, LIST_PRICES[name].price, is_listed=True)
    if not equals:
        raise ValueError(
            f"has no list price; add {label}=PRICE, the price of one device for one hour"
        )
    if separator and not PRICE_LIST.fullmatch(price_list):
        raise ValueError("must contain only letters, digits, dots, and dashes in the name after @")
    price, slash, node_devices = price_text.partition("/")
    return DevicePrice(
        device=name,
        price=number_of(0, 1_000_000)(price),
        price_list=price_list,
        node_devices=whole_number(1, 1024)(node_devices) if slash else 1,
    )


def _read_confidence(text: str) -> float:
    if not text.endswith("%"):
        raise ValueError("must be a percentage, such as 90%")
    percent = number_of(0, 100)(text.removesuffix("%"))
    if not MIN_CONFIDENCE <= percent <= MAX_CONFIDENCE:
        raise ValueError(f"must be between {MIN_CONFIDENCE}% and {MAX_CONFIDENCE}%")
    return percent / 100


def _read_backend(text: str) -> str:
    if not text.startswith(DASK) or not text.rpartition(":")[2].isdecimal():
        raise ValueError(f"must be {DASK}HOST:PORT")
    return text.removeprefix(DASK)
