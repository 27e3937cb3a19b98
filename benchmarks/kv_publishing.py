"""What publishing KV events costs a request: a cache that tells nobody, one with a subscriber, one
whose subscriber does not read.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count

import zmq

from benchmarks import cores
from benchmarks.connections import HOST, request
from benchmarks.options import parser
from benchmarks.report import show_machine
from benchmarks.requests import compare
from benchmarks.servers import Load, Server, free_port, ours

SILENT = "cache, no events"
READ = "events, read"
UNREAD = "events, not read"
VOCABULARY = 4000


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    with ExitStack() as stack:
        servers = [stack.enter_context(_cached(name)) for name in (SILENT, READ, UNREAD)]
        title = f"{options.prompt} new tokens in, {options.tokens} out, {options.connections} connections"
        compare(title, servers, _prompts(options.prompt, options.tokens), options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("kv_publishing", __doc__, rounds=25)
    flags.add_argument("--connections", type=int, default=32)
    flags.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    flags.add_argument(
        "--prompt", type=int, default=512, help="tokens of a prompt, none of them cached"
    )
    flags.add_argument("--tokens", type=int, default=32, help="tokens of a reply")
    return flags.parse_args(argv)


def _prompts(tokens: int, reply: int) -> Iterator[bytes]:
    """Completions of prompts that have nothing in common:

    every block is stored, and soon evicted.
    """
    for prompt_number in count():
        ids = [(prompt_number * 7 + k * k) % VOCABULARY + 1 for k in range(tokens - 2)]
        prompt = [prompt_number // VOCABULARY + 1, prompt_number % VOCABULARY + 1, *ids]
        body = {"model": "m", "prompt": prompt, "max_tokens": reply, "ignore_eos": True}
        yield request("/v1/completions", json.dumps(body).encode())


@contextmanager
def _cached(name: str) -> Iterator[Server]:
    """A server with a cache; a subscriber that reads, or does not, when it publishes."""
    port = free_port()
    endpoint = "" if name == SILENT else f"tcp://{HOST}:{port}"
    settings = {
        "SIM_ENABLE_KVCACHE": "1",
        "SIM_ZMQ_ENDPOINT": endpoint,
        "SIM_KV_CACHE_SIZE": "8192",
    }
    with (
        _subscribed(port, reads=name == READ),
        ours(Load(), name=name, extra_settings=settings) as server,
    ):
        yield server


@contextmanager
def _subscribed(port: int, reads: bool) -> Iterator[None]:
    end = threading.Event()
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe("")
        socket.bind(f"tcp://{HOST}:{port}")

        def read() -> None:
            received = 0
            while not end.is_set() and (reads or not received):
                if socket.poll(50):
                    socket.recv_multipart()
                    received += 1

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            end.set()
            reader.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
