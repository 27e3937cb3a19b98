"""What a chunk of a stream costs over gRPC, against a chunk of the same server over HTTP.

Needs requirements-grpc.txt. The client of gRPC is a few lines that count frames: grpcio's takes
several times as much for a message as the server does, and would be what is measured.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, HeadersFrame

from app.core.server.http.rpc import framed
from app.extensions.grpc.messages import engine
from app.extensions.grpc.reflection import SERVICE
from benchmarks import cores
from benchmarks.connections import HOST
from benchmarks.options import counts, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, middle_ratio, number, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import Load, Server, ours
from benchmarks.streams import PATIENCE, StreamPlan, play

COLUMNS = ("asked", "connections", "chunks/s", "CPU µs/chunk", "ratio")
HTTP = 0
"""In the place of a number of connections."""
WARM_UP_STREAMS = 50
WARM_UP_TOKENS = 10
RECEIVE = 1 << 18
MOST_WINDOW = 2**31 - 1
FRAME_HEAD = Struct(">BHBBL")
DATA = 0x0
HEADERS = 0x1
END_STREAM = 0x1


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of the worker, microseconds a chunk; chunks that came each second."""

    cpu_us: float
    chunks_per_s: float


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when a chunk over gRPC costs more than the limit."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(options.ttft / 1e3, options.itl / 1e3, options.tokens, max(options.streams))
    worst = 0.0
    with ours(load, extra_settings={"SIM_GRPC": "true"}) as server:
        for connections in (HTTP, 1):
            _measure(
                server, connections, WARM_UP_STREAMS, Load(load.ttft_s, load.itl_s, WARM_UP_TOKENS)
            )
        for streams in options.streams:
            worst = max(worst, _compare(server, streams, load, options))
    return int(worst > options.limit)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("grpc", __doc__, rounds=5)
    flags.add_argument("--streams", type=counts, default=[100, 1000], help="numbers, with commas")
    flags.add_argument("--tokens", type=int, default=100, help="length of a stream")
    flags.add_argument("--itl", type=float, default=20, help="milliseconds between tokens")
    flags.add_argument("--ttft", type=float, default=50, help="milliseconds until the first token")
    flags.add_argument("--limit", type=float, default=2.5, help="most CPU, in units of HTTP's")
    return flags.parse_args(argv)


def _compare(server: Server, streams: int, load: Load, options: argparse.Namespace) -> float:
    """The worst ratio of a number of connections."""
    ways = [HTTP, 1, 8, streams]
    rounds = interleaved(ways, options.rounds, lambda way: _measure(server, way, streams, load))
    over_http = [cost.cpu_us for cost in rounds[HTTP]]
    rows = []
    worst = 0.0
    for way, costs in rounds.items():
        middle = medians(costs)
        seen = [cost.cpu_us for cost in costs]
        ratio = middle_ratio(seen, over_http)
        worst = max(worst, float(ratio.rstrip("x")))
        protocol = "HTTP, chat" if way == HTTP else "gRPC, Generate"
        rows.append(
            [
                protocol,
                f"{way or streams:,}",
                number(middle.chunks_per_s, 0),
                number(middle.cpu_us, 1),
                ratio,
            ]
        )
    show(f"{streams:,} streams of {load.tokens} tokens", COLUMNS, rows, [])
    return worst


def _measure(server: Server, connections: int, streams: int, load: Load) -> Cost:
    plan = StreamPlan(
        server.port, streams, tokens=load.tokens, spread_s=1.0, length_s=load.length_s
    )
    begun = time.monotonic()
    with used_by(server.worker) as use:
        if connections == HTTP:
            chunks = sum(len(arrivals.chunks_ns) for arrivals in play(plan).arrivals)
        else:
            chunks = Calls(plan, connections).run()
    return Cost(use.cpu_s / chunks * 1e6, chunks / (time.monotonic() - begun))


class Calls:
    """Streams of one plan over so many connections."""

    def __init__(self, plan: StreamPlan, connections: int) -> None:
        self._plan = plan
        params = engine.SamplingParams(max_tokens=plan.tokens, ignore_eos=True)
        request = engine.GenerateRequest(text="Hello!", stream=True, sampling_params=params)
        self._request = framed(request.SerializeToString())
        names = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{SERVICE}/Generate",
            ":authority": HOST,
        }
        fields = {**names, "content-type": "application/grpc", "te": "trailers"}
        protocol = H2Connection(H2Configuration(client_side=True))
        self._headers = protocol.encoder.encode([(*field, True) for field in fields.items()])
        protocol.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = MOST_WINDOW
        protocol.local_settings.acknowledge()
        protocol.initiate_connection()
        protocol.increment_flow_control_window(MOST_WINDOW - 65_535)
        self._hello = protocol.data_to_send()
        self._connections = [_Connection(plan.port, self._hello) for _ in range(connections)]
        self._epoll = select.epoll()
        self._by_fd = {connection.sock.fileno(): connection for connection in self._connections}
        for fd in self._by_fd:
            self._epoll.register(fd, select.EPOLLIN)

    def run(self) -> int:
        """Chunks that came. RuntimeError when some stream did not end in time."""
        plan = self._plan
        begun = time.monotonic()
        step_s = plan.spread_s / plan.streams
        started = 0
        give_up_s = begun + PATIENCE * (plan.spread_s + plan.length_s) + 10
        while sum(connection.ended for connection in self._connections) < plan.streams:
            while started < plan.streams and time.monotonic() >= begun + started * step_s:
                self._start(started)
                started += 1
            for fd, _ in self._epoll.poll(step_s if started < plan.streams else 0.5):
                self._by_fd[fd].read()
            if time.monotonic() > give_up_s:
                raise RuntimeError("streams over gRPC did not end")
        self._epoll.close()
        for connection in self._connections:
            connection.sock.close()
        chunks = sum(connection.chunks for connection in self._connections)
        if chunks != plan.streams * (plan.tokens + 1):
            raise RuntimeError(f"{chunks} chunks of {plan.streams * (plan.tokens + 1)}")
        return chunks

    def _start(self, number: int) -> None:
        connection = self._connections[number % len(self._connections)]
        stream = connection.next_stream
        connection.next_stream += 2
        head = HeadersFrame(stream, self._headers, flags=("END_HEADERS",))
        data = DataFrame(stream, self._request, flags=("END_STREAM",))
        connection.sock.sendall(head.serialize() + data.serialize())


class _Connection:
    __slots__ = ("_unread", "chunks", "ended", "next_stream", "sock")

    def __init__(self, port: int, hello: bytes) -> None:
        self.sock = socket.create_connection((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(hello)
        self._unread = b""
        self.chunks = self.ended = 0
        self.next_stream = 1

    def read(self) -> None:
        data = self._unread + self.sock.recv(RECEIVE)
        offset = 0
        while len(data) - offset >= FRAME_HEAD.size:
            high, low, kind, flags, _ = FRAME_HEAD.unpack_from(data, offset)
            end = offset + FRAME_HEAD.size + (high << 16 | low)
            if end > len(data):
                break
            if kind == DATA:
                self.chunks += _messages(data, offset + FRAME_HEAD.size, end)
            elif kind == HEADERS and flags & END_STREAM:
                self.ended += 1
            offset = end
        self._unread = data[offset:]


def _messages(data: bytes, offset: int, end: int) -> int:
    """How many messages a frame has; ours have whole ones."""
    message_count = 0
    while offset < end:
        offset += 5 + int.from_bytes(data[offset + 1 : offset + 5], "big")
        message_count += 1
    return message_count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
