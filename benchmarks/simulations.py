"""CPU time of `simulate` and `plan` on 20 loads, and whether another checkout gives equal results.

The first load is the one of docs/benchmarks.md, for `--seconds` of its hour.
"""

from __future__ import annotations

import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.options import add_other, counts, parser
from benchmarks.report import middle_ratio, number, show, show_machine
from benchmarks.rounds import interleaved

HOUR = "simulate --pods 100 --rate 1200 --processes 1 --seconds"
LLAMA = "--profile auto --device h100 --model meta-llama/Llama-3.1-8B-Instruct"
DRAFTS = (
    '{"method":"eagle","model":"yuhuili/EAGLE-LLaMA3.1-Instruct-8B","num_speculative_tokens":3}'
)
QUESTION = "--input-tokens 2000 --output-tokens 300 --slo ttft_p95=1s,tpot_p95=40ms"
SCARCE = "--num-gpu-blocks-override 1500 --max-model-len 8000"
POD_RATE = 12
FLEET_SECONDS = (5, 15)
"""Requests per second of each pod, and the moments between which their cost is measured."""
LOADS = (
    f"{HOUR} 30 --policy random --output-tokens 128",
    "simulate --pods 10 --rate 60 --seconds 120 --policy round-robin --arrivals bursty",
    "simulate --pods 10 --rate 60 --seconds 120 --policy prefix-aware --prefix-groups 20"
    " --prefix-tokens 800",
    "simulate --rate 4 --seconds 300 --turns 4 --think 5s",
    f"simulate --pods 4 --rate 40 --seconds 100 {SCARCE}",
    f"simulate --pods 4 --rate 40 --seconds 100 {SCARCE} --policy random --no-async-scheduling",
    "simulate --in-flight 64 --num-requests 3000 --rate 100",
    "simulate --pods 4 --in-flight 200 --num-requests 5000 --rate 100 --output-tokens sharegpt",
    "simulate --prefill-pods 4 --decode-pods 4 --rate 40 --seconds 100"
    " --kv-bytes-per-token 163840 --transfer-bandwidth 25GB",
    "simulate --pods 4 --rate 30 --seconds 100 --kv-tiers cpu=20GB@20GB/s --prefix-groups 30"
    " --prefix-tokens 2000 --turns 3",
    f"simulate {LLAMA} --pods 4 --rate 30 --seconds 100 --loras 8 --max-loras 2",
    "simulate --pods 3 --rate 30 --seconds 100 --priorities gold=0@30% silver=5@70%",
    f"simulate {LLAMA} --pods 3 --rate 20 --seconds 100 --speculative-config '{DRAFTS}'",
    f"simulate {LLAMA} --pods 3 --rate 40 --seconds 60 --arrivals ramp --ramp-from 5",
    "simulate --profile auto --device b200 --model openai/gpt-oss-120b --pods 2 --rate 20"
    " --seconds 60 --prefix-groups 5 --prefix-tokens 300",
    "simulate --pods 8 --rate 80 --seconds 200 --max-num-seqs 16"
    " --long-prefill-token-threshold 512 --max-num-batched-tokens 1024",
    "simulate --pods 3 --rate 20 --seconds 200 --no-enable-chunked-prefill --max-model-len 8000"
    " --burstiness 0.3 --arrivals bursty --output-tokens 1-4",
    "plan --model meta-llama/Llama-3.1-8B-Instruct --device h100 --rate 30 --input-tokens 1000"
    " --output-tokens 200 --slo ttft_p95=1s,tpot_p95=40ms",
    f"plan --model llama-3.3-70b --rate 20 {QUESTION}",
)
"""Commands; the hour comes before them."""


def main(argv: Sequence[str]) -> int:
    """Exit status; 1 if the results of the other checkout differ."""
    flags = parser("simulations", __doc__, rounds=5)
    flags.add_argument("--seconds", type=int, default=60, help="seconds of the first load [60]")
    flags.add_argument("--first", action="store_true", help="only the first load")
    flags.add_argument(
        "--fleets", type=counts, help="instead: CPU time per request of fleets, such as 10,100,1000"
    )
    add_other(flags)
    options = flags.parse_args(argv)
    checkouts = {"ours": Path.cwd()}
    if options.other:
        checkouts["other"] = options.other.resolve()
    show_machine()
    if options.fleets:
        compare_fleets(options.fleets, checkouts, options.rounds)
        return 0
    rows = []
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        loads = [f"{HOUR} {options.seconds}", *([] if options.first else LOADS)]
        for load in loads:
            results = {name: Path(folder) / name for name in checkouts}
            measure = partial(_cpu_s, load, checkouts, results)
            seconds = interleaved(checkouts, options.rounds, measure)
            row = [load, *(number(median(seconds[name]), 2, " s") for name in checkouts)]
            if options.other:
                is_equal = _files(results["ours"]) == _files(results["other"])
                differ |= not is_equal
                row += [middle_ratio(seconds["ours"], seconds["other"]), str(is_equal).lower()]
            rows.append(row)
    columns = ["load", *checkouts, *(["ratio", "equal"] if options.other else [])]
    show("CPU time of simulations", columns, rows)
    return int(differ)


def compare_fleets(fleets: Sequence[int], checkouts: Mapping[str, Path], round_count: int) -> None:
    """Shows the CPU time of a request between two moments of the same load per pod."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        results = {name: Path(folder) / name for name in checkouts}
        for pods in fleets:
            load = f"simulate --pods {pods} --rate {POD_RATE * pods} --processes 1 --seconds"
            costs: dict[str, list[float]] = {name: [] for name in checkouts}
            for _ in range(round_count):
                for name in checkouts:
                    start_s, end_s = (
                        _cpu_s(f"{load} {seconds}", checkouts, results, name, has_requests=False)
                        for seconds in FLEET_SECONDS
                    )
                    requests = POD_RATE * pods * (FLEET_SECONDS[1] - FLEET_SECONDS[0])
                    costs[name].append((end_s - start_s) / requests * 1e6)
            rows.append([str(pods), *(number(median(costs[name]), 1, " µs") for name in checkouts)])
    title = f"CPU time per request of fleets, {POD_RATE} requests/s per pod"
    show(title, ["pods", *checkouts], rows)


def _cpu_s(
    load: str,
    checkouts: Mapping[str, Path],
    folders: Mapping[str, Path],
    name: str,
    has_requests: bool = True,
) -> float:
    """Runs a load in a checkout, and keeps all that it writes; returns its CPU time in seconds.

    `has_requests`: a simulation writes a row for each request.
    """
    checkout = checkouts[name]
    results = folders[name]
    results.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "app", *shlex.split(load), "--json", str(results / "json")]
    if has_requests and load.startswith("simulate"):
        command += ["--requests", str(results / "csv")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (results / "out").open("wb") as out:
        subprocess.run(command, cwd=checkout, stdout=out, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _files(folder: Path) -> dict[str, bytes]:
    """Returns what each file in a folder contains."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
