"""Compares the steps of vLLM's scheduler with Understudy's on random loads.

    $ python -m fidelity.judge_steps                              # 1,000 loads with vLLM 0.32.0
    $ python -m fidelity.judge_steps --version 0.33.0 --seed 7
    $ python -m fidelity.judge_steps --kinds stop,choices --loads 50
    $ python -m fidelity.judge_steps --broken --loads 48

The exit status is 1 if a load differs in another way than by `is_late_block` or
`is_exhausted_pool`; the first one is printed as a small load.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from app.core.versions.chain import PlayedVersion, played_version
from fidelity.judge_steps.broken_rules import BREAKS, differing_loads
from fidelity.judge_steps.difference import (
    Difference,
    first_difference,
    is_exhausted_pool,
    is_late_block,
    shrink,
)
from fidelity.judge_steps.driving import drive
from fidelity.judge_steps.kinds import KINDS, make_load
from fidelity.judge_steps.load import Load, Steps, load_for
from fidelity.judge_steps.our_engine import OurEngine
from fidelity.judge_steps.records import write_records
from fidelity.judge_steps.vllm_process import VllmProcesses
from fidelity.oracle.configurations import STORE
from fidelity.oracle.install import install
from fidelity.oracle.servers import simulated_version_of
from vllm_facts.history import version_number

VERSION = "0.32.0"
LOADS = 1000
SEED = 1
PROCESSES = 2
COLUMNS = (
    "loads",
    "equal",
    "requests",
    "steps",
    "tokens",
    "preempted",
    "aborts",
    "adapters",
    "reloads",
    "drafted",
    "remote",
    "lost",
    "groups",
    "cached",
    "events",
    "stored",
    "evicted",
)
"""Columns of the table.

`adapters`, `drafted`, `remote` and `lost` count requests; `stored` and `evicted` count chunks of a
tier of CPU blocks, `reloads` adapters that are loaded and unloaded.
"""
WIDTH = 10
"""Characters of a column."""


class Totals:
    """What the loads of a run contained."""

    def __init__(self) -> None:
        self.by_kind: dict[str, Counter[str]] = {}
        self.vllm_s = 0.0
        self.our_s = 0.0

    def count(self, load: Load, vllm: Steps, ours: Steps, is_equal: bool) -> None:
        """Adds a load."""
        counts = self.by_kind.setdefault(load.kind, Counter())
        counts["loads"] += 1
        counts["equal"] += is_equal
        counts["requests"] += len(load.plans)
        counts["aborts"] += sum(bool(item.abort) for item in load.inputs)
        counts["adapters"] += sum(plan.adapter > 0 for plan in load.plans)
        counts["reloads"] += sum(item.adapter > 0 for item in load.inputs)
        counts["drafted"] += len(load.plans) if load.drafter else 0
        counts["remote"] += sum(plan.is_remote for plan in load.plans)
        counts["lost"] += sum(plan.is_remote and plan.lost_block is not None for plan in load.plans)
        counts["groups"] += len(load.groups)
        for step in vllm.steps:
            counts["steps"] += bool(step.tokens)
            counts["tokens"] += sum(tokens for _, tokens in step.tokens)
            counts["preempted"] += len(step.preempted)
            counts["cached"] += sum(tokens for _, tokens in step.admitted)
            counts["events"] += len(step.events)
            for event in step.events:
                if isinstance(event, dict) and event.get("medium") == "CPU":
                    kind = "stored" if event["type"] == "BlockStored" else "evicted"
                    counts[kind] += len(event["block_hashes"])
        self.vllm_s += vllm.seconds
        self.our_s += ours.seconds

    def show(self) -> None:
        """Prints a row for each kind, and their sum."""
        total: Counter[str] = Counter()
        for counts in self.by_kind.values():
            total.update(counts)
        print(f"{'kind':14}" + "".join(f"{column:>{WIDTH}}" for column in COLUMNS))
        for kind, counts in [*self.by_kind.items(), ("total", total)]:
            print(f"{kind:14}" + "".join(f"{counts[column]:{WIDTH},}" for column in COLUMNS))
        steps = max(1, total["steps"])
        for name, seconds in (("vLLM", self.vllm_s), ("Understudy", self.our_s)):
            print(
                f"{name}: {seconds:.1f} s in the scheduler, {seconds / steps * 1e6:.0f} µs a step"
            )


class Judge:
    """Compares the steps of loads."""

    def __init__(self, processes: VllmProcesses, version: PlayedVersion) -> None:
        self._processes = processes
        self._version = version

    def our_steps(self, load: Load) -> Steps:
        """Returns Understudy's steps of a load."""
        return drive(load, OurEngine(load, self._version))

    def compare(self, load: Load) -> Difference | None:
        """Returns the first difference of a load."""
        return first_difference(self._processes.steps(load), self.our_steps(load))

    def run(self, loads: Sequence[Load]) -> int:
        """Compares all loads, and prints the result. Returns the exit status."""
        totals = Totals()
        differing: list[tuple[Load, Difference]] = []
        late_blocks = 0
        exhausted_pools = 0
        start_s = time.monotonic()
        for load, vllm in zip(loads, self._processes.map(loads), strict=True):
            ours = self.our_steps(load)
            difference = first_difference(vllm, ours)
            totals.count(load, vllm, ours, difference is None)
            if difference is not None and is_late_block(load, vllm, ours, difference):
                late_blocks += 1
            elif difference is not None and is_exhausted_pool(vllm, difference):
                exhausted_pools += 1
            elif difference is not None:
                differing.append((load, difference))
                mode = "asynchronous" if load.is_asynchronous else "synchronous"
                print(f"load {load.number} ({load.kind}, {mode}) differs: {difference}")
        totals.show()
        seconds = time.monotonic() - start_s
        equal = len(loads) - len(differing) - late_blocks - exhausted_pools
        print(f"{equal} of {len(loads)} loads are equal, in {seconds:.0f} s")
        if late_blocks:
            print(f"{late_blocks} loads store or find a block a step later than vLLM, or never")
        if exhausted_pools:
            print(f"{exhausted_pools} loads end with an exception of vLLM's scheduler")
        if differing:
            self._show_small(*differing[0])
        return int(bool(differing))

    def find_broken_rules(self, loads: Sequence[Load]) -> int:
        """Prints which loads find each rule that is broken on purpose. Returns the exit status."""
        judged = list(zip(loads, self._processes.map(loads), strict=True))
        status = 0
        for name, break_rule in BREAKS.items():
            differing = differing_loads(break_rule, self._version, judged)
            if not differing:
                status = 1
                print(f"{name}: not found")
                continue
            count = loads.index(differing[0]) + 1
            kinds = ", ".join(sorted({load.kind for load in differing}))
            print(f"{name}: found after {count} loads; {len(differing)} differ ({kinds})")
        return status

    def _show_small(self, load: Load, difference: Difference) -> None:
        load = shrink(load, self.compare, difference.field)
        print(f"a small load that differs:\n{msgspec.json.encode(load).decode()}")
        print(self.compare(load))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default=VERSION, help="version of vLLM (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=LOADS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument("--number", type=int, help="only the load with this number")
    parser.add_argument("--kinds", help=f"some of {','.join(KINDS)}; default: all")
    parser.add_argument(
        "--broken", action="store_true", help="break rules on purpose, which the loads must find"
    )
    parser.add_argument("--record", action="store_true", help="write the loads of the tests")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="default: %(default)s")
    options = parser.parse_args(argv)
    kinds = options.kinds.split(",") if options.kinds else list(KINDS)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--kinds: unknown {', '.join(unknown)}")
    numbers = range(options.loads) if options.number is None else [options.number]
    release = version_number(options.version)
    loads = [
        load_for(make_load(options.seed, number, kinds[number % len(kinds)]), release)
        for number in numbers
    ]
    install(options.version)
    processes = VllmProcesses(options.version, options.processes, STORE / options.version)
    simulated_version = simulated_version_of(options.version)
    try:
        if options.record:
            write_records(simulated_version, processes.map)
            return 0
        judge = Judge(processes, played_version(simulated_version))
        if options.broken:
            return judge.find_broken_rules(loads)
        return judge.run(loads)
    finally:
        processes.stop()


if __name__ == "__main__":
    sys.exit(main())
