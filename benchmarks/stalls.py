"""What everybody else notices while one client asks for something huge: nothing stops a worker.

While each hostile request is under way, `GET /health` is asked for on another connection and 100
paced streams are watched; ten seconds later the worker's memory is compared with what it was
before. Then `GET /health` is measured in rounds beside ordinary crowds (`benchmarks.health`), and
beside hostile templates and rules (`benchmarks.hostile_rules`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec
import zmq

from benchmarks import health, hostile_rules
from benchmarks.arrivals import Rhythm
from benchmarks.connections import HOST, PATH, exchange, get, request
from benchmarks.options import parser
from benchmarks.processes import children, rss_mib
from benchmarks.report import number, show, show_machine
from benchmarks.servers import Load, Server, free_port, ours
from benchmarks.streams import StreamPlan, observe, play

LOAD = Load(ttft_s=0.05, itl_s=0.02, tokens=250, streams=512)
STREAMS = 100
PROBE_EVERY_S = 0.02
ATTACK_S = 12.0
"""Longest time that an attack goes on; the streams take about as long as half of it."""
REST_S = 10.0
GIGABYTE = 1 << 30
HEALTH_LIMIT_MS = 250.0
CHUNK_LIMIT_MS = 50.0
MEMORY_LIMIT_MIB = 20.0
CROWD_HEALTH_LIMIT_MS = 100.0
COLUMNS = (
    "while",
    "answer",
    "health max ms",
    "chunk p99 ms",
    "chunk max ms",
    "memory",
    "worker",
    "",
)

Attack = Callable[[int, int], str]
"""Does its worst to the ports of a server and of its index; what came of it, in a word or two."""


def _body(path: str, size: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\nContent-Length: %d\r\n\r\n" % size


def _answered(sock: socket.socket) -> str:
    sock.settimeout(ATTACK_S)
    with suppress(OSError):
        return sock.recv(64).split(b"\r\n")[0].decode()[9:] or "closed"
    return "no answer"


def _push(head: bytes) -> Attack:
    """A gigabyte of body that nobody wants to read."""

    def push(port: int, index: int) -> str:
        with socket.create_connection((HOST, port)) as sock:
            sock.sendall(head)
            block = b" " * (1 << 16)
            end = time.monotonic() + ATTACK_S
            with suppress(OSError):
                while time.monotonic() < end:
                    sock.sendall(block)
            return _answered(sock)

    return push


def _ask(path: str, body: bytes, max_bytes: int = 1 << 40) -> Attack:
    """A request that is complete; as much of its answer is read as there is time for."""

    def ask(port: int, index: int) -> str:
        with socket.create_connection((HOST, port)) as sock:
            sock.settimeout(ATTACK_S)
            sock.sendall(request(path, body))
            first = b""
            received = 0
            end = time.monotonic() + ATTACK_S
            with suppress(OSError):
                while (
                    time.monotonic() < end and received < max_bytes and (data := sock.recv(1 << 20))
                ):
                    first = first or data[:64]
                    received = received + len(data)
            word = first.split(b"\r\n")[0].decode()[9:] or "no answer"
            return f"{word}, {received / 1e6:.1f} MB"

    return ask


def _crowd(connections: int, data: bytes) -> Attack:
    """Clients that send `data` again and again, each as fast as it is read, and read every answer."""

    def crowd(port: int, index: int) -> str:
        selector = selectors.DefaultSelector()
        end = time.monotonic() + ATTACK_S
        sent = 0
        for _ in range(connections):
            _join(selector, port)
        while time.monotonic() < end:
            for key, _ in selector.select(1.0):
                try:
                    sent += _take_part(key, data)
                except BlockingIOError:
                    pass
                except OSError:  # the server has closed it
                    selector.unregister(key.fileobj)
                    _join(selector, port)
        return f"{sent / 1e6:,.0f} MB read"

    return crowd


def _join(selector: selectors.BaseSelector, port: int) -> None:
    sock = socket.create_connection((HOST, port))
    sock.setblocking(False)
    selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, {"sent": 0})


def _take_part(key: selectors.SelectorKey, data: bytes) -> int:
    """Read what has come and send one part of `data`; how many bytes were sent."""
    sock: socket.socket = key.fileobj  # type: ignore[assignment]
    with suppress(BlockingIOError):
        if not sock.recv(1 << 20):
            raise ConnectionResetError
    start = key.data["sent"] % len(data)
    sent = sock.send(data[start : start + (1 << 16)])
    key.data["sent"] += sent
    return sent


def _chunks(port: int, index: int) -> str:
    """Four million chunks of one byte: a body within the limit."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode().ljust(4_000_000)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((HOST, port)) as sock:
        sock.settimeout(60.0)
        sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):
            for start in range(0, len(body), 20_000):
                part = body[start : start + 20_000]
                sock.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in part))
            sock.sendall(b"0\r\n\r\n")
            return sock.recv(64).split(b"\r\n")[0].decode()[9:]
    return "cut off"


def _schemas(port: int, index: int) -> str:
    """Schemas that are all different, one after another."""
    end = time.monotonic() + ATTACK_S
    count = 0
    with socket.create_connection((HOST, port)) as sock:
        while time.monotonic() < end:
            schema = {"type": "object", "properties": {f"field{count}": {"type": "string"}}}
            form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            body = {
                "messages": [{"role": "user", "content": "a"}],
                "max_tokens": 1,
                "response_format": form,
            }
            exchange(sock, request(PATH, json.dumps(body).encode()))
            count += 1
    return f"{count:,} schemas"


def _publish(messages: Callable[[], Iterator[list[bytes]]]) -> Attack:
    """Messages to the index, as an engine would publish them."""

    def publish(port: int, index: int) -> str:
        context = zmq.Context()
        sender = context.socket(zmq.PUB)
        sender.connect(f"tcp://{HOST}:{index}")
        time.sleep(1.0)
        count = 0
        for parts in messages():
            sender.send_multipart(parts)
            count += 1
        time.sleep(5.0)
        context.destroy(linger=1000)
        return f"{count:,} messages"

    return publish


def _batch(event: bytes, count: int) -> bytes:
    """A batch of `count` events in MessagePack: [time, [event, ...], rank]."""
    return b"\x93\xcb" + b"\0" * 8 + b"\xdd" + count.to_bytes(4, "big") + event * count + b"\xc0"


def _nils() -> Iterator[list[bytes]]:
    payload = (
        b"\x93\xcb"
        + b"\0" * 8
        + b"\xdd"
        + (15_000_000).to_bytes(4, "big")
        + b"\xc0" * 15_000_000
        + b"\xc0"
    )
    yield [b"kv@10.0.0.1@m", (1).to_bytes(8, "big"), payload]


def _million() -> Iterator[list[bytes]]:
    event = msgspec.msgpack.encode(["BlockRemoved", [1]])
    yield [b"kv@10.0.0.1@m", (2).to_bytes(8, "big"), _batch(event, 1_000_000)]


def _pods() -> Iterator[list[bytes]]:
    for pod in range(38_000):
        event = ["BlockStored", [pod], None, list(range(16)), 16, None]
        topic = f"kv@10.{pod >> 16}.{pod >> 8 & 255}.{pod & 255}@m".encode()
        yield [topic, (1).to_bytes(8, "big"), msgspec.msgpack.encode([0.0, [event], None])]


def _chat(**fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "a"}], **fields}).encode()


MESSAGES = json.dumps(
    {"messages": [{"role": "user", "content": "a"}] * 100_000, "max_tokens": 1}
).encode()
TOOLS = _chat(
    tools=[{"type": "function", "function": {"name": f"f{k}"}} for k in range(50_000)], max_tokens=1
)
HUGE = {"n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 4000, "ignore_eos": True}

_CHUNKED = (
    f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
)
ONE_BYTE_CHUNKS = _CHUNKED + b"1\r\n \r\n" * 40_000 + b"0\r\n\r\n"
LONG_HEAD = b"GET /version HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (
    HOST.encode(),
    b"".join(b"X-%d: %s\r\n" % (field, b"a" * 600) for field in range(88)),
)


def _functions(tools: int) -> list[dict[str, object]]:
    parameters = {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(10)},
    }
    functions = [{"name": f"f{number}", "parameters": parameters} for number in range(tools)]
    return [{"type": "function", "function": function} for function in functions]


def _rendered_chat(tools: int) -> bytes:
    """Returns a rendered chat whose question is found with up to five renderings of `tools`."""
    context = {"tools": _functions(tools), "tool_choice": "auto", "history_tool_call_cnt": 1}
    body = {
        "token_ids": [*range(5, 100)],
        "sampling_params": {"max_tokens": 1},
        "parse_context": context,
    }
    return request("/inference/v1/generate", json.dumps(body).encode())


CROWDS: dict[str, Attack] = {
    "60 send one-byte chunks": _crowd(60, ONE_BYTE_CHUNKS),
    "60 pipeline GET /health": _crowd(60, get("/health") * 4000),
    "400 pipeline GET /health": _crowd(400, get("/health") * 4000),
    "60 send heads of 54 KB": _crowd(60, LONG_HEAD),
    "60 send chats with 100 tools": _crowd(
        60, request(PATH, _chat(tools=_functions(100), max_tokens=1))
    ),
    "60 send rendered chats with 100 tools": _crowd(60, _rendered_chat(tools=100)),
}
ATTACKS: dict[str, Attack] = {
    "1 GB to POST /ping": _push(_body("/ping", GIGABYTE)),
    "1 GB with a refused key": _push(_body("/admin/config", GIGABYTE, "X-Admin-Key: wrong")),
    "1 GB to a chat (413)": _push(_body(PATH, GIGABYTE)),
    "4,000,000 one-byte chunks": _chunks,
    "100,000 messages": _ask(PATH, MESSAGES),
    "50,000 tools": _ask(PATH, TOOLS),
    "n=128 x 4000 x 20 streamed": _ask(PATH, _chat(**HUGE, stream=True)),
    "n=128 x 4000 x 20 whole": _ask(PATH, _chat(**HUGE)),
    "unique schemas": _schemas,
    "15 MB of nils to the index": _publish(_nils),
    "a batch of a million events": _publish(_million),
    "38,000 pods": _publish(_pods),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What others noticed of one attack."""

    answer: str
    health_limit_ms: float
    health_max_ms: float
    chunk_p99_ms: float
    chunk_max_ms: float
    growth_mib: float
    lives: bool

    @property
    def is_fine(self) -> bool:
        return (
            self.health_max_ms <= self.health_limit_ms
            and self.chunk_p99_ms <= CHUNK_LIMIT_MS
            and self.growth_mib <= MEMORY_LIMIT_MIB
            and self.lives
        )


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when something stalled."""
    options = _options(argv)
    show_machine()
    index = free_port()
    settings = {
        "SIM_KV_INDEX": "true",
        "SIM_KV_INDEX_BIND": f"tcp://{HOST}:{index}",
        "SIM_ADMIN_KEY": "secret",
        "SIM_MAX_MODEL_LEN": "300000",
        "SIM_MAX_REQUEST_BODY_SIZE_MB": "8",
        "SIM_ENABLE_SCALE_OUT": "true",
        "SIM_VLLM_VERSION": "0.33",
    }
    crowds = dict(CROWDS)
    if options.grpc:
        from benchmarks.http2_crowds import http2_crowds  # whose packages need not be here

        settings["SIM_GRPC"] = "true"
        crowds |= {f"{name} (HTTP/2)": _crowd(60, data) for name, data in http2_crowds().items()}
    rows = []
    fine = True
    with ours(LOAD, extra_settings=settings) as server:
        play(StreamPlan(server.port, STREAMS, tokens=20, spread_s=0.1, length_s=1.0))
        for name, attack in (crowds | ATTACKS).items():
            if options.only in name:
                limit_ms = CROWD_HEALTH_LIMIT_MS if name in crowds else HEALTH_LIMIT_MS
                seen = _watch(server, index, attack, limit_ms)
                fine &= seen.is_fine
                rows.append(_row(name, seen))
    show(f"Stalls, beside {STREAMS} paced streams", COLUMNS, rows, [])
    fine &= _measure_health(options.only, options.rounds)
    return 0 if fine else 1


def _measure_health(only: str, rounds: int) -> bool:
    """Shows how long GET /health takes beside crowds; returns whether all rows are in order."""
    figures = {
        name: health.measure(crowd, rounds) for name, crowd in health.CROWDS.items() if only in name
    }
    worker_lives = True
    if only in hostile_rules.NAME:
        figures[hostile_rules.NAME], worker_lives = hostile_rules.measure(rounds)
    rows = [seen.row(name) for name, seen in figures.items()]
    notes = [] if worker_lives else [f"The worker died: {hostile_rules.NAME}."]
    show(f"GET /health beside crowds, medians of {rounds} rounds", health.COLUMNS, rows, notes)
    return worker_lives and all(seen.is_fine for seen in figures.values())


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("stalls", __doc__, health.ROUNDS)
    flags.add_argument("--only", default="", help="attacks whose name has this in it")
    flags.add_argument(
        "--grpc", action="store_true", help="crowds of HTTP/2, too; needs the extra grpc"
    )
    return flags.parse_args(argv)


def _watch(server: Server, index: int, attack: Attack, health_limit_ms: float) -> Seen:
    rss_before_mib = rss_mib(server.worker)
    answers, teller = multiprocessing.Pipe(duplex=False)
    attacker = multiprocessing.Process(target=_attack, args=(attack, server.port, index, teller))
    probes, prober = multiprocessing.Pipe(duplex=False)
    probe = multiprocessing.Process(target=_probe, args=(server.port, prober), daemon=True)
    probe.start()
    attacker.start()
    plan = StreamPlan(
        server.port, STREAMS, tokens=LOAD.tokens, spread_s=0.5, length_s=LOAD.length_s
    )
    pace = observe(plan, Rhythm(LOAD.ttft_s, LOAD.itl_s, server.role_chunks)).pace
    attacker.join(60.0)
    answer = answers.recv() if answers.poll() else "no end"
    attacker.kill()
    probe.terminate()
    health = max((probes.recv() for _ in iter(probes.poll, False)), default=float("inf"))
    time.sleep(REST_S)
    lives = server.worker in children(server.arbiter)
    grown = rss_mib(server.worker) - rss_before_mib if lives else float("nan")
    return Seen(
        answer,
        health_limit_ms,
        health_max_ms=health * 1e3,
        chunk_p99_ms=pace.chunk_p99_ms,
        chunk_max_ms=pace.chunk_max_ms,
        growth_mib=grown,
        lives=lives,
    )


def _attack(attack: Attack, port: int, index: int, teller: Connection) -> None:
    os.nice(5)  # one core is the server's and the clients' that are measured
    teller.send(attack(port, index))


def _probe(port: int, prober: Connection) -> None:
    """Ask for GET /health again and again; send each time that was longer than all before."""
    longest = 0.0
    with socket.create_connection((HOST, port)) as sock:
        while True:
            begun = time.monotonic()
            exchange(sock, get("/health"))
            if (taken := time.monotonic() - begun) > longest:
                longest = taken
                prober.send(longest)
            time.sleep(PROBE_EVERY_S)


def _row(name: str, seen: Seen) -> list[str]:
    return [
        name,
        seen.answer,
        number(seen.health_max_ms, 1),
        number(seen.chunk_p99_ms, 1),
        number(seen.chunk_max_ms, 1),
        number(seen.growth_mib, 1, " MiB"),
        "lives" if seen.lives else "died",
        "" if seen.is_fine else "STALLED",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
