"""How long GET /health takes beside a crowd of clients, and without it: rows of
`benchmarks.stalls`.

Each round starts a server, and measures it without the crowd first, then beside it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import MappingProxyType

from benchmarks.arrivals import quantile
from benchmarks.connections import HOST, PATH, exchange, get, opened, request
from benchmarks.report import number
from benchmarks.servers import Load, ours

ROUNDS = 7
CLIENTS = 60
QUIET_S = 2.0
CROWDED_S = 5.0
"""Seconds of a round without and with the crowd."""
WARM_UP_S = 0.5
"""Seconds until the crowd's first requests have been admitted."""
PROBE_EVERY_S = 0.01
LIMIT_MS = 100.0
MORE_MS = 40.0
"""The median of p99 may be LIMIT_MS, or MORE_MS above that of the same run without a crowd."""
SIP_BYTES = 1 << 16
SIP_EVERY_S = 0.1
COLUMNS = ("while", "p50 ms", "p99 ms", "p99 without ms", "limit ms", "max ms", "")
LAST_CHUNK = b"0\r\n\r\n"

Crowd = Callable[[int], None]
"""Clients of the server at a port; goes on until its process ends."""


def _stream(path: str, **fields: object) -> bytes:
    return request(path, json.dumps({"ignore_eos": True, "stream": True, **fields}).encode())


def _chat(tokens: int, choices: int = 1) -> bytes:
    """A streamed chat with the most log probabilities that vLLM allows."""
    return _stream(
        PATH,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=tokens,
        n=choices,
        logprobs=True,
        top_logprobs=20,
    )


def readers(data: bytes) -> Crowd:
    """Clients that read their answer as it comes, and ask again."""

    def crowd(port: int) -> None:
        selector = selectors.DefaultSelector()
        with opened(port, CLIENTS) as clients:
            for client in clients:
                client.sendall(data)
                selector.register(client, selectors.EVENT_READ, [b""])
            while True:
                for key, _ in selector.select():
                    reader: socket.socket = key.fileobj  # type: ignore[assignment]
                    received = key.data[0] + reader.recv(1 << 18)
                    if received.endswith(LAST_CHUNK):
                        reader.sendall(data)
                    key.data[0] = received[-len(LAST_CHUNK) :]

    return crowd


def silent(data: bytes) -> Crowd:
    """Clients that ask for much and never read."""

    def crowd(port: int) -> None:
        with opened(port, CLIENTS) as clients:
            for client in clients:
                client.sendall(data)
            while True:
                time.sleep(1.0)

    return crowd


def sippers(data: bytes) -> Crowd:
    """Clients that read a little, ten times a second."""

    def crowd(port: int) -> None:
        with opened(port, CLIENTS) as clients:
            for client in clients:
                client.sendall(data)
                client.setblocking(False)
            while True:
                begun_s = time.monotonic()
                for client in clients:
                    with suppress(BlockingIOError):
                        client.recv(SIP_BYTES)
                time.sleep(max(0.0, begun_s + SIP_EVERY_S - time.monotonic()))

    return crowd


CROWDS: Mapping[str, Crowd] = MappingProxyType(
    {
        "60 stream chats with 20 log probabilities": readers(_chat(1000)),
        "60 stream completions with 20 log probabilities": readers(
            _stream("/v1/completions", prompt="hi", max_tokens=1000, logprobs=20)
        ),
        "60 do not read": silent(_chat(4000)),
        "60 do not read, 8 choices each": silent(_chat(4000, choices=8)),
        "60 read 640 KB a second": sippers(_chat(4000, choices=8)),
    }
)


@dataclass(frozen=True, slots=True)
class HealthRound:
    """Durations of GET /health in one round, in ms."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    quiet_p99_ms: float


@dataclass(frozen=True, slots=True)
class HealthFigures:
    """All rounds beside one crowd."""

    rounds: Sequence[HealthRound]

    @property
    def p99_ms(self) -> float:
        return statistics.median(round_.p99_ms for round_ in self.rounds)

    @property
    def limit_ms(self) -> float:
        return max(
            LIMIT_MS, statistics.median(round_.quiet_p99_ms for round_ in self.rounds) + MORE_MS
        )

    @property
    def is_fine(self) -> bool:
        return self.p99_ms <= self.limit_ms

    def row(self, name: str) -> list[str]:
        return [
            name,
            number(statistics.median(round_.p50_ms for round_ in self.rounds), 1),
            number(self.p99_ms, 1),
            number(statistics.median(round_.quiet_p99_ms for round_ in self.rounds), 1),
            number(self.limit_ms, 1),
            number(max(round_.max_ms for round_ in self.rounds), 1),
            "" if self.is_fine else "STALLED",
        ]


def measure(crowd: Crowd, rounds: int) -> HealthFigures:
    """Measures GET /health beside `crowd`, with the default timing, which is without latency."""
    return HealthFigures([_round(crowd) for _ in range(rounds)])


def _round(crowd: Crowd) -> HealthRound:
    with ours(Load(streams=512)) as server:
        quiet_ms = probed(server.port, QUIET_S)
        process = multiprocessing.Process(target=_run, args=(crowd, server.port), daemon=True)
        process.start()
        try:
            time.sleep(WARM_UP_S)
            crowded_ms = probed(server.port, CROWDED_S)
            if not process.is_alive():
                raise RuntimeError("the crowd has ended early")
        finally:
            process.kill()
            process.join()
    return round_of(crowded_ms, quiet_ms)


def round_of(crowded_ms: Sequence[float], quiet_ms: Sequence[float]) -> HealthRound:
    """Returns the figures of a round from the durations of its requests, in ms."""
    return HealthRound(
        p50_ms=quantile(crowded_ms, 0.5),
        p99_ms=quantile(crowded_ms, 0.99),
        max_ms=max(crowded_ms),
        quiet_p99_ms=quantile(quiet_ms, 0.99),
    )


def _run(crowd: Crowd, port: int) -> None:
    os.nice(5)  # one core is the server's and that of the client that is measured
    crowd(port)


def probed(port: int, seconds: float) -> list[float]:
    """Returns the duration of each GET /health, in ms."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_probe, args=(port, seconds, sender), daemon=True)
    process.start()
    sender.close()  # so that a probe that fails ends the wait
    durations_ms: list[float] = receiver.recv()
    process.join()
    return durations_ms


def _probe(port: int, seconds: float, sender: Connection) -> None:
    durations_ms: list[float] = []
    end_s = time.monotonic() + seconds
    with socket.create_connection((HOST, port)) as client:
        while time.monotonic() < end_s:
            begun_s = time.monotonic()
            exchange(client, get("/health"))
            durations_ms.append((time.monotonic() - begun_s) * 1e3)
            time.sleep(PROBE_EVERY_S)
    sender.send(durations_ms)
