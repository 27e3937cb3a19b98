"""Many clients of every kind for a long time: nothing breaks, no place is lost, memory stays flat.

`python -m benchmarks.soak --minutes 10 --streams 200`: streams and whole answers of all API
families, with tools and adapters; 5 % of the requests are failed on purpose, some clients leave
early, adapters are loaded and unloaded and settings change all the time. The minutes begin when the
server is warm: after `--warm-up` minutes of the same. The exit status is 1 when an answer had
status 500, when places or queues are not empty in the end, or when memory grew by more than 3 %
from the first of the minutes to the last.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from random import Random
from statistics import median

import gevent
import msgspec
from gevent.pool import Group
from urllib3.exceptions import HTTPError

from app.shared.http_client import JSON, HttpConnection, exchange
from benchmarks.connections import HOST
from benchmarks.processes import rss_mib
from benchmarks.report import show_machine
from benchmarks.servers import OURS, WSGI, Server, free_port, running

MOST_GROWTH = 0.03
PATIENCE_S = 30.0
SAMPLE_S = 2.0
SETTINGS = {
    "SIM_MODEL": "base",
    "SIM_MAX_NUM_SEQS": "160",
    "SIM_TIME_TO_FIRST_TOKEN": "50ms",
    "SIM_INTER_TOKEN_LATENCY": "10ms",
    "SIM_FAILURE_INJECTION_RATE": "4",
    "SIM_FAULT_RULES": msgspec.json.encode(
        [
            {"action": "disconnect", "after": 3, "probability": 0.005},
            {"action": "malformed-chunk", "probability": 0.005},
            {"action": "stall", "seconds": 0.5, "probability": 0.005},
        ]
    ).decode(),
    "SIM_ENABLE_KVCACHE": "true",
    "SIM_MAX_LORAS": "3",
    "SIM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "SIM_SERVER_DEV_MODE": "true",
    "SIM_ENABLE_SCALE_OUT": "true",
}
ADAPTERS = [f"adapter-{number}" for number in range(6)]
CHANGES: list[dict[str, object]] = [
    {"inter-token-latency": "8ms"},
    {"inter-token-latency": "12ms", "inter-token-latency-std-dev": "2ms"},
    {"inter-token-latency-std-dev": 0, "time-to-first-token": "80ms"},
    {"time-to-first-token": "30ms", "tool-call-extra-call-probability": 80},
    {"failure-types": ["rate_limit", "server_error"]},
    {"failure-types": []},
]
TOOL = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city"],
}


class Cache(msgspec.Struct):
    """What `GET /admin/memory` tells of one cache."""

    size_bytes: int


class Memory(msgspec.Struct):
    """The answer of `GET /admin/memory`."""

    caches: dict[str, Cache]


class Soak:
    """The clients of one server, and what they saw."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.address = f"{HOST}:{server.port}"
        self.statuses: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.memory: list[float] = []
        self.cold: list[float] = []
        """Memory before the server was warm."""
        self.over = False
        self._rng = Random(seed)

    def client(self) -> None:
        """One client after the other, until it is over."""
        while not self.over:
            path, body = self._question()
            leaves = self._rng.random() < 0.1
            try:
                self.outcomes[self._ask(path, body, leaves)] += 1
            except (OSError, HTTPError):
                self.outcomes["broken off"] += 1

    def _question(self) -> tuple[str, dict[str, object]]:
        rng = self._rng
        model = rng.choice([*ADAPTERS, *["base"] * 6])
        text = f"Question {rng.randrange(50)}: " + "why? " * rng.randrange(40)
        max_tokens = rng.randrange(1, 120)
        stream = rng.random() < 0.8
        chat: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "stream": stream,
        }
        kind = rng.randrange(6)
        if kind == 0:
            return "/v1/completions", {
                "model": model,
                "prompt": [text] * 2,
                "max_tokens": max_tokens,
                "stream": stream,
            }
        if kind == 1:
            return "/v1/messages", {**chat, "max_tokens": max_tokens}
        if kind == 2:
            return "/v1/responses", {
                "model": model,
                "input": text,
                "max_output_tokens": max_tokens,
                "stream": stream,
            }
        if kind == 3:
            tool = {"type": "function", "function": {"name": "look", "parameters": TOOL}}
            return "/v1/chat/completions", {
                **chat,
                "tools": [tool],
                "tool_choice": rng.choice(["auto", "required"]),
            }
        if kind == 4:
            schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": TOOL}}
            return "/v1/chat/completions", {**chat, "response_format": schema, "n": 2}
        return "/v1/chat/completions", {**chat, "max_tokens": max_tokens}

    def _ask(self, path: str, body: Mapping[str, object], leaves: bool) -> str:
        with closing(HttpConnection(self.address, PATIENCE_S)) as connection:
            connection.request("POST", path, msgspec.json.encode(body), JSON)
            if leaves and self._rng.random() < 0.5:
                gevent.sleep(self._rng.random() * 0.1)
                return "left before the answer"
            answer = connection.getresponse()
            self.statuses[answer.status] += 1
            if leaves:
                answer.read(self._rng.randrange(400))
                return "left within the answer"
            data = answer.read()
            if answer.status != 200:
                return f"status {answer.status}"
            return "whole" if data.rstrip().endswith((b"}", b"[DONE]")) else "cut short"

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> bytes:
        """A call of the operator's."""
        data = None if body is None else msgspec.json.encode(body)
        status, answer = exchange(self.address, method, path=path, body=data, timeout_s=PATIENCE_S)
        self.statuses[status] += status >= 500
        return answer

    def churn(self) -> None:
        """Adapters come and go, settings change, metrics are scraped."""
        while not self.over:
            name = self._rng.choice(ADAPTERS)
            self.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": "/" + name})
            self.call("POST", "/admin/config", self._rng.choice(CHANGES))
            self.call("GET", "/metrics")
            gevent.sleep(0.2)
            if self._rng.random() < 0.5:
                self.call(
                    "POST", "/v1/unload_lora_adapter", {"lora_name": self._rng.choice(ADAPTERS)}
                )
            if self._rng.random() < 0.02:
                self.call("POST", "/pause?mode=keep")
                gevent.sleep(0.1)
                self.call("POST", "/resume")

    def churn_always(self) -> None:
        """As `churn`, also when the machine is so busy that a call takes too long."""
        while not self.over:
            try:
                self.churn()
            except (OSError, HTTPError):
                self.outcomes["an operator's call broken off"] += 1

    def is_warm(self) -> None:
        """What comes from now on is measured."""
        self.cold = self.memory
        self.memory = []

    def watch(self) -> None:
        """The worker's memory, again and again."""
        while not self.over:
            self.memory.append(rss_mib(self.server.worker))
            gevent.sleep(SAMPLE_S)

    def caches(self) -> dict[str, float]:
        """MiB in each cache that has something, by the server's own reckoning."""
        memory = msgspec.json.decode(self.call("GET", "/admin/memory"), type=Memory)
        return {
            name: cache.size_bytes / 2**20
            for name, cache in memory.caches.items()
            if cache.size_bytes
        }

    def gauge(self, name: str) -> float:
        """One number of the metrics."""
        lines = self.call("GET", "/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    flags.add_argument("--minutes", type=float, default=10.0)
    flags.add_argument("--warm-up", type=float, default=3.0)
    flags.add_argument("--streams", type=int, default=200)
    flags.add_argument("--seed", type=int, default=1)
    options = flags.parse_args(argv)
    show_machine()
    port = free_port()
    with running(OURS, WSGI, port, {**SETTINGS, "SIM_HOST": HOST, "SIM_PORT": str(port)}) as server:
        soak = Soak(server, options.seed)
        clients = Group()
        for work in (soak.churn_always, soak.watch, *[soak.client] * options.streams):
            clients.spawn(work)
        gevent.sleep(options.warm_up * 60)
        soak.is_warm()
        warm = soak.caches()
        gevent.sleep(options.minutes * 60)
        soak.over = True
        clients.join(PATIENCE_S * 2)
        gevent.sleep(1)
        return _report(soak, options, warm)


def _report(soak: Soak, options: argparse.Namespace, warm: Mapping[str, float]) -> int:
    """Print what was seen; 1 when it is not good."""
    first, last = _ends(soak.memory, options.minutes)
    growth = last / first - 1
    places = {name: soak.gauge(f"vllm:num_requests_{name}") for name in ("running", "waiting")}
    print(
        f"requests: {sum(soak.outcomes.values())} in {options.warm_up:g} + {options.minutes:g} minutes"
    )
    print("statuses:", dict(sorted(soak.statuses.items())))
    print("outcomes:", dict(soak.outcomes.most_common()))
    print(f"memory MiB: {first:.1f} when warm, {last:.1f} at the end ({growth:+.1%})")
    print("memory over time:", _spread(soak.cold, 6), "warm:", _spread(soak.memory, 20))
    for name, mib in soak.caches().items():
        print(f"  cache {name}: {warm.get(name, 0.0):.2f} MiB when warm, {mib:.2f} at the end")
    print("in the end:", places)
    wrong = [f"{soak.statuses[500]} answers with status 500"] if soak.statuses[500] else []
    wrong += ["places or queues are not empty"] if any(places.values()) else []
    wrong += [f"memory grew by {growth:.1%}"] if growth > MOST_GROWTH else []
    print("; ".join(wrong) or "good")
    return int(bool(wrong))


def _spread(memory: Sequence[float], count: int) -> list[int]:
    """About so many samples, rounded."""
    return [round(mib) for mib in memory[:: max(1, len(memory) // count)]]


def _ends(memory: Sequence[float], minutes: float) -> tuple[float, float]:
    """Median memory in the first and in the last minute, or in tenths of less than ten minutes."""
    part = max(1, round(len(memory) / max(10, minutes)))
    return median(memory[:part]), median(memory[-part:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
