"""How near a replay comes to its recording: every byte, and the moment of every chunk.

Agents (user, tool call, tool result, answer) ask one instance of the server through the real proxy:
loops of this process with long answers, and those of real clients against the README's script
(benchmarks/agents.py). Another instance answers the same requests from the recording. A chunk is
late or early by its distance from its request, less the recorded distance. What the machine
withheld of the server's core meanwhile is told apart (benchmarks/withheld.py): no server can send
anything then.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import accumulate
from pathlib import Path
from typing import Any

from app.extensions.recording.exchange import (
    Exchange,
    RecordedAnswer,
    RecordedChunk,
    bytes_of,
    read_exchange,
)
from benchmarks import agents, cores, servers, stamps
from benchmarks.client import watched
from benchmarks.connections import HOST, PATH, RECEIVE, opened
from benchmarks.options import counts, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, share, show, show_machine
from benchmarks.withheld import Withheld, kept_awake, withheld

LOAD = servers.Load(ttft_s=0.05, itl_s=0.02, tokens=60)
SCRIPT = servers.ROOT / "examples" / "scripts" / "weather.yaml"
LOOPS = "loops"
LIMIT_MS = 5.0
GAP_S = 0.003
"""Between the beginnings of requests that run together."""
SETTLE_S = 0.05
PATIENCE_S = 60.0
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
COLUMNS = (
    *("agent", "together", "answers", "equal bytes", "chunks", "error p50 ms", "p99 ms", "max ms"),
    *("within 5 ms", "worst round, max ms", "of it our own"),
)


def main(argv: Sequence[str]) -> int:
    """Exit status:

    1 when a byte was wrong, or a chunk too far from its moment for reasons of our own.
    """
    options = _options(argv)
    cores.pin_client()
    show_machine()
    warnings: list[str] = []
    seen: dict[tuple[str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {
            agent: _recorded(Path(folder), agent, options) for agent in _agents(options.clients)
        }
        for _ in range(options.rounds):
            for agent, file in files.items():
                for together in options.together:
                    seen.setdefault((agent, together), []).append(
                        _measured(file, together, warnings)
                    )
    rows = [_row(agent, together, rounds) for (agent, together), rounds in seen.items()]
    show(f"Replay of {options.loops} loops of an agent", COLUMNS, rows, warnings)
    return 0 if all(_is_good(rounds) for rounds in seen.values()) else 1


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("replaying", __doc__)
    add = flags.add_argument
    add(
        "--loops",
        type=int,
        default=20,
        help="that are recorded, of two requests each; real agents go half of them, twice",
    )
    add(
        "--together",
        type=counts,
        default=[1, 40],
        help="requests that run at the same time, with commas",
    )
    add(
        "--clients",
        type=Path,
        default=Path(
            os.environ.get("CLIENTS_PYTHON", servers.ROOT / ".venv-clients" / "bin" / "python")
        ),
        metavar="PYTHON",
        help="an interpreter that has pydantic-ai [what make clients made]",
    )
    return flags.parse_args(argv)


def _agents(clients: Path) -> dict[str, Path]:
    """Returns the interpreter that has each recorded agent."""
    interpreters = dict.fromkeys((LOOPS, "openai"), Path(sys.executable))
    if clients.exists():
        return interpreters | {"pydantic-ai": clients}
    print("pydantic-ai is left out: make clients, or --clients PYTHON")
    return interpreters


def _recorded(folder: Path, agent: str, options: argparse.Namespace) -> Path:
    """Records `agent`, and returns the file."""
    file = folder / f"{agent}.jsonl"
    script = {} if agent == LOOPS else {"SIM_SCRIPT": str(SCRIPT)}
    with servers.ours(LOAD, extra_settings=script) as live, _proxy(live.port, file) as port:
        towns = [f"Town{number}" for number in range(options.loops)]
        if agent == LOOPS:
            client = HTTPConnection(HOST, port, timeout=PATIENCE_S)
            for town in towns:
                _loop(client, agents.QUESTION.format(town))
        else:
            python = str(_agents(options.clients)[agent])
            words = [python, agents.__file__, agent, f"http://{HOST}:{port}", "m", *towns[::2]]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return file


def _measured(file: Path, together: int, warnings: list[str]) -> Figures:
    exchanges = [read_exchange(line) for line in file.read_bytes().splitlines()[1:]]
    replay = {"SIM_REPLAY": str(file), "SIM_REPLAY_MISS": "not-found"}
    with (
        servers.ours(LOAD, extra_settings=replay) as server,
        watched() as watch,
        used_by(server.worker) as use,
        kept_awake(),
        withheld(cores.SERVER) as lost,
    ):
        replayed = _replay(server.port, exchanges, together)
    warnings += [*watch.health.warnings(), *use.warnings("the server"), *lost.warnings()]
    return _figures(replayed, lost)


@contextmanager
def _proxy(port: int, file: Path) -> Iterator[int]:
    words = (
        "record",
        "--proxy",
        "--target",
        f"http://{HOST}:{port}",
        "--out",
        str(file),
        "--port",
        "0",
    )
    process = subprocess.Popen(
        [*servers.MODULE, *words], cwd=servers.ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().split()[0].rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate()


def _loop(client: HTTPConnection, text: str) -> None:
    messages: list[Any] = [{"role": "user", "content": text}]
    body = {"model": "m", "messages": messages, "tools": [TOOL], "tool_choice": "required"}
    message = json.loads(_post(client, body))["choices"][0]["message"]
    messages.append(message)
    calls = [call["id"] for call in message["tool_calls"]]
    messages += [{"role": "tool", "tool_call_id": call, "content": "sunny"} for call in calls]
    options = {"max_tokens": LOAD.tokens, "ignore_eos": True, "stream": True, "tool_choice": "none"}
    _post(client, {**body, **options})


def _post(client: HTTPConnection, body: object) -> bytes:
    client.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
    return client.getresponse().read()


def _last_request(path: str, body: bytes) -> bytes:
    """A whole HTTP request behind which the server closes the connection."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass(slots=True)
class Replayed:
    """What came for one request, and when (Unix time, nanoseconds)."""

    recorded: RecordedAnswer
    sent_ns: int = 0
    pieces: list[tuple[int, bytes]] = field(default_factory=list)

    def errors_ms(self) -> list[float]:
        """How far each chunk came from its recorded distance to the request; empty when a byte is
        wrong.
        """
        received = b"".join(piece for _, piece in self.pieces)
        ends = list(accumulate(len(piece) for _, piece in self.pieces))
        errors = []
        wanted = [bytes_of(chunk.data) for chunk in self.recorded.chunks]
        offset = received.find(b"\r\n\r\n") + 4
        for chunk, content in zip(self.recorded.chunks, wanted, strict=True):
            start = received.find(content, offset)
            if start < 0 or len(received[offset:start].strip(b"0123456789abcdef\r\n")):
                return []
            offset = start + len(content)
            arrived_ns = next(
                ns for (ns, _), end in zip(self.pieces, ends, strict=True) if end >= offset
            )
            errors.append((arrived_ns - self.sent_ns) / 1e6 - chunk.at_s * 1e3)
        return errors if received[offset:].strip(b"\r\n") in (b"", b"0") else []

    def own_ms(self, error_ms: float, chunk: RecordedChunk, lost: Withheld) -> float:
        """A chunk's error without what the machine withheld when the request came and when it was
        due.
        """
        if error_ms <= 0:
            return -error_ms
        late_ns = round(error_ms * 1e6)
        due_ns = self.sent_ns + round(chunk.at_s * 1e9)
        read_ns = self.sent_ns + late_ns
        excused = lost.between_ns(self.sent_ns, read_ns)
        excused += lost.between_ns(max(read_ns, due_ns), due_ns + late_ns)
        return max(0.0, error_ms - excused / 1e6)


def _replay(port: int, exchanges: Sequence[Exchange], together: int) -> list[Replayed]:
    replayed: list[Replayed] = []
    for start in range(0, len(exchanges), together):
        replayed += _wave(port, exchanges[start : start + together])
    return replayed


def _wave(port: int, exchanges: Sequence[Exchange]) -> list[Replayed]:
    """Requests that run together, each on a connection of its own that ends with its answer."""
    requests = [Replayed(exchange.answer) for exchange in exchanges]
    with opened(port, len(exchanges)) as sockets, selectors.DefaultSelector() as ready:
        time.sleep(SETTLE_S)
        for replayed, exchange, sock in zip(requests, exchanges, sockets, strict=True):
            stamps.ask_for(sock)
            replayed.sent_ns = time.time_ns()
            sock.sendall(_last_request(exchange.request.target, bytes_of(exchange.request.body)))
            ready.register(sock, selectors.EVENT_READ, replayed)
            _receive(ready, GAP_S)
        while ready.get_map():
            _receive(ready, PATIENCE_S)
    return requests


def _receive(ready: selectors.BaseSelector, wait_s: float) -> None:
    """What comes within `wait_s`, or, beyond that, what comes first."""
    until_s = time.monotonic() + wait_s
    while (left_s := until_s - time.monotonic()) > 0 and ready.get_map():
        for key, _ in ready.select(left_s):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            data, ancillary, _, _ = sock.recvmsg(RECEIVE, stamps.ROOM)
            if data:
                key.data.pieces.append((stamps.stamp_ns(ancillary) or time.time_ns(), data))
            else:
                ready.unregister(sock)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one round: answers, which share of them had every byte, chunks, and how far these came
    from their moments, milliseconds early or late; `within`: which share of them at most
    `LIMIT_MS`; `own_max_ms`: the worst without what the machine withheld.
    """

    answers: float
    equal: float
    chunks: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    within: float
    own_max_ms: float


def _figures(replayed: Sequence[Replayed], lost: Withheld) -> Figures:
    errors_of_answers = [answer.errors_ms() for answer in replayed]
    errors = sorted(abs(error) for answer_errors in errors_of_answers for error in answer_errors)
    return Figures(
        len(replayed),
        sum(map(bool, errors_of_answers)) / len(replayed),
        chunks=len(errors),
        p50_ms=statistics.median(errors),
        p99_ms=errors[len(errors) * 99 // 100],
        max_ms=errors[-1],
        within=sum(error <= LIMIT_MS for error in errors) / len(errors),
        own_max_ms=max(
            answer.own_ms(error, chunk, lost)
            for answer, answer_errors in zip(replayed, errors_of_answers, strict=True)
            for error, chunk in zip(
                answer_errors, answer.recorded.chunks, strict=False
            )  # without errors: wrong bytes
        ),
    )


def _is_good(rounds: Sequence[Figures]) -> bool:
    return all(figures.equal == 1 and figures.own_max_ms <= LIMIT_MS for figures in rounds)


def _row(agent: str, together: int, rounds: Sequence[Figures]) -> list[str]:
    middle = medians(rounds)
    return [
        *(
            agent,
            str(together),
            number(middle.answers, 0),
            share(min(figures.equal for figures in rounds)),
        ),
        *(
            number(middle.chunks, 0),
            number(middle.p50_ms),
            number(middle.p99_ms),
            number(middle.max_ms),
        ),
        *(number(middle.within * 100, 1, " %"), number(max(figures.max_ms for figures in rounds))),
        number(max(figures.own_max_ms for figures in rounds)),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
