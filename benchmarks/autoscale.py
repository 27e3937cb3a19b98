"""How near an autoscaled fleet of live pods comes to its simulation: the number of pods at each
look.

Pods are servers on a profile, which start, get requests after a cold start, drain and stop. The
load rises for half of the time, and falls again. Policy, routing and times are those of `simulate
--autoscale`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

import gevent
import msgspec

from app.core.engine.profile import read_profile
from app.extensions.plugins.policies import Sample
from app.shared.http_client import COMPLETIONS, exchange
from benchmarks.report import number, share, show, show_machine
from config.sections.engine import DEFAULT_PROFILE
from workbench.fleet.fleet import MODULE
from workbench.fleet.processes import HOST, Processes, ServerProcess
from workbench.load.autoscale_flags import read_policy
from workbench.load.autoscaler import Autoscaler, Autoscaling
from workbench.load.loads import LoadTrace
from workbench.load.pod_lives import Life
from workbench.load.policies import LEAST_REQUESTS, PrefixAware
from workbench.load.synthetic import RAMP, Between, Recipe, draw_load
from workbench.runs.simulation import SimulationPlan, simulate

POLICY = "hpa:metric=running,target=2,min=1,max=6,up=1/10s,window-down=30s"
COLD_START_S = 5.0
STARTUP_S = 3.0
"""The rest of the cold start is that of the process."""
PLACES = 4
LENGTHS = Between(100, 300)
"""Tokens of prompts, and of answers."""
GAUGES = {"running": "num_requests_running", "waiting": "num_requests_waiting"}
PATIENCE_S = 60.0


class LiveFleet:
    """Pods of an autoscaler on loopback ports, and the client that routes a load to them."""

    def __init__(self, plan: SimulationPlan, load: LoadTrace, processes: Processes) -> None:
        assert plan.autoscaling is not None
        self._load = load
        self._processes = processes
        self._pods: list[ServerProcess] = []
        self._in_flight: Counter[int] = Counter()
        self.answered = 0
        self._policy = PrefixAware[None, int](lambda request: {}, Random(f"{plan.seed}/live"))
        scaling = plan.autoscaling
        begin_s = load.arrival_s[0]
        self.scaler = Autoscaler(
            scaling,
            pods=plan.pods,
            begin_s=begin_s,
            seed=plan.seed,
            start_pod=self._start,
            sample=self._sample,
        )

    def run(self, end_s: float) -> None:
        """Sends the load, and follows the autoscaler until `end_s` seconds after the start."""
        for pod in self._pods:
            self._processes.wait(pod)
        begun_s = time.monotonic()
        requests = [
            gevent.spawn_later(at_s, self._send, place)
            for place, at_s in enumerate(self._load.arrival_s)
        ]
        while (at_s := self.scaler.next_s) < end_s:
            gevent.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            self.scaler.handle_event()
            self._stop_drained()
        gevent.joinall(requests)

    def _start(self) -> None:
        port = self._processes.port()
        place = len(self._pods)
        flags = {
            **{"host": HOST, "port": port, "model": "m", "profile": DEFAULT_PROFILE},
            **{"max-num-seqs": PLACES, "startup-duration": f"{STARTUP_S}s", "log-level": "warning"},
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        self._pods.append(self._processes.start(f"pod {place}", port, [*MODULE, *words]))

    def _sample(self, place: int, at_s: float) -> Sample:
        text = exchange(self._pods[place].address, "GET", "/metrics")[1].decode()
        gauges = {
            name: re.search(rf"^vllm:{full}{{.*}} (\S+)$", text, re.M)
            for name, full in GAUGES.items()
        }
        return {name: float(match[1]) for name, match in gauges.items() if match}

    def _send(self, place: int) -> None:
        load = self._load
        body = {
            "model": "m",
            "prompt": [place % 900 + 100] * load.input_tokens[place],
            "ignore_eos": True,
        }
        request = msgspec.json.encode({**body, "max_tokens": load.output_tokens[place]})
        pod = self._policy.choose(None, self.scaler.ready, self._in_flight)
        self._in_flight[pod] += 1
        give_up_s = time.monotonic() + PATIENCE_S
        address = self._pods[pod].address
        while time.monotonic() < give_up_s:
            with suppress(OSError):  # a process may start later than its pod is ready
                status, _ = exchange(
                    address, "POST", path=COMPLETIONS, body=request, timeout_s=PATIENCE_S
                )
                self.answered += status == 200
                break
            gevent.sleep(0.05)
        self._in_flight[pod] -= 1

    def _stop_drained(self) -> None:
        for place, life in enumerate(self.scaler.lives):
            process = self._pods[place].process
            if (
                life.drain_s <= self.scaler.next_s
                and not self._in_flight[place]
                and process.poll() is None
            ):
                os.killpg(process.pid, signal.SIGTERM)


def pods_at(lives: Sequence[Life], at_s: float) -> int:
    """Returns the pods that load or are ready."""
    return sum(life.begun_s <= at_s < life.drain_s for life in lives)


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 where too few looks agree, or a request was lost."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    flags.add_argument("--policy", default=POLICY, help="as --autoscale of simulate")
    flags.add_argument("--rate", type=float, default=5.0, help="requests/s at the most")
    flags.add_argument("--seconds", type=float, default=200.0)
    flags.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    options = flags.parse_args(argv)
    show_machine()
    load = _load(options)
    plan = _plan(options)
    simulated = simulate(load, plan).lives
    processes = Processes()
    try:
        fleet = LiveFleet(plan, load, processes)
        fleet.run(options.seconds)
    finally:
        processes.close()
    return _show(load, simulated, fleet, options)


def _load(options: argparse.Namespace) -> LoadTrace:
    half = options.seconds / 2
    ramp = Recipe(arrivals=RAMP, seconds=half, input_tokens=LENGTHS, output_tokens=LENGTHS)
    up = replace(ramp, rate=options.rate, ramp_from=0.5)
    down = replace(up, rate=0.5, ramp_from=options.rate, seed=2)
    load = draw_load(up, 4096)
    later = draw_load(down, 4096)
    load.arrival_s.extend(at_s + half for at_s in later.arrival_s)
    load.input_tokens.extend(later.input_tokens)
    load.output_tokens.extend(later.output_tokens)
    return load


def _plan(options: argparse.Namespace) -> SimulationPlan:
    profile = read_profile(DEFAULT_PROFILE)
    engine = msgspec.structs.replace(profile.engine, max_num_seqs=PLACES)
    policy = read_policy(options.policy, {})
    return SimulationPlan(
        profile=msgspec.structs.replace(profile, engine=engine),
        policy=LEAST_REQUESTS,
        autoscaling=Autoscaling(
            policy=policy, cold_start_s=COLD_START_S, every_s=options.every, scrape_s=options.every
        ),
    )


def _show(
    load: LoadTrace, simulated: Sequence[Life], fleet: LiveFleet, options: argparse.Namespace
) -> int:
    looks = [
        load.arrival_s[0] + count * options.every
        for count in range(1, int(options.seconds / options.every))
    ]
    pairs = [(pods_at(simulated, at_s), pods_at(fleet.scaler.lives, at_s)) for at_s in looks]
    rows = [
        (number(at_s, 0), f"{mine}", f"{live}")
        for at_s, (mine, live) in zip(looks, pairs, strict=True)
    ]
    show(f"{options.policy}, {len(load)} requests", ("s", "simulated", "live"), rows)
    same, near = (
        sum(abs(mine - live) <= apart for mine, live in pairs) / len(pairs) for apart in (0, 1)
    )
    lost = len(load) - fleet.answered
    agree = f"{share(same)} of {len(pairs)} looks, within one at {share(near)}"
    print(f"Same number of pods at {agree}; {lost} of {len(load)} requests lost.")
    return 0 if near >= 0.95 and not lost else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
