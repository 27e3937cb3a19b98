"""Prints the path of one request through our code: every call, and the totals.

    $ python scripts/trace_request.py            # a three-token chat stream on the fast path
    $ python scripts/trace_request.py --general  # the same under Flask
    $ python scripts/trace_request.py --profile  # on the fast path, in the steps of an engine
    $ python scripts/trace_request.py --paced    # on the fast path, token by token
    $ python scripts/trace_request.py --known    # a chat that must call a known tool
    $ python scripts/trace_request.py --direct   # the same with one more field, by its handler
    $ python scripts/trace_request.py --tool     # the same under Flask
    $ python scripts/trace_request.py --summary  # only the totals, of all paths and the KV index
    $ python scripts/trace_request.py --bytecodes  # only the number of bytecodes, of all paths

A *change of file* is a call in another file than the previous call; a *room* is a folder of `app`,
such as `core/api` or `core/server/gunicorn`.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import io  # noqa: E402
import logging  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from itertools import groupby, pairwise  # noqa: E402
from operator import itemgetter  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from types import FrameType  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gunicorn.config import Config  # noqa: E402

from app.core.application import create_app  # noqa: E402
from app.core.engine.kvcache.events import BlockStored, EventBatch, encoder  # noqa: E402
from app.core.server.flask.application import Understudy  # noqa: E402
from app.core.server.gunicorn.fair_turns import FairTurns  # noqa: E402
from app.core.server.gunicorn.fast_connection import FastConnection  # noqa: E402
from app.core.server.gunicorn.hub_connection import FastPath  # noqa: E402
from app.core.server.gunicorn.logs import ServerLogger  # noqa: E402
from app.core.server.http.context import CONTEXT, context_of  # noqa: E402
from app.core.settings import load  # noqa: E402
from app.extensions.kv_index.index import Index  # noqa: E402
from app.extensions.kv_index.memory import MemoryBackend  # noqa: E402
from app.extensions.kv_index.messages import PublishedMessage  # noqa: E402
from app.extensions.kv_index.pool import Pool  # noqa: E402
from app.extensions.kv_index.resources import PoolSettings  # noqa: E402

BODY = b'{"messages":[{"role":"user","content":"Hello!"}],"stream":true,"max_tokens":3}'
TOOL = (
    b'{"type":"function","function":{"name":"f",'
    b'"parameters":{"type":"object","additionalProperties":false}}}'
)
TOOL_BODY = (
    BODY.replace(b"3", b"300")[:-1] + b',"seed":1,"tool_choice":"required","tools":[' + TOOL + b"]}"
)
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
DIRECT_BODY = TOOL_BODY[:-1] + b',"parallel_tool_calls":true}'
FAST_BODIES = {"fast": BODY, "known tool": TOOL_BODY, "direct tool": DIRECT_BODY}
"""Bodies of requests that Flask does not serve, by the names of their paths."""
WARM_UP = 600
"""Number of requests before the trace, so that everything that is created once exists."""
CLIENTS = 12
REQUESTS = 9
"""Number of traced requests, of which the median is shown."""
PROFILE = ("--profile", "qwen3-14b-h100")
PACED = ("--time-to-first-token", "20ms", "--inter-token-latency", "20ms")
"""Flags of servers whose tokens take time."""
OUR_FOLDERS = tuple(str(ROOT / name) for name in ("app", "config", "vllm_facts"))
PATHS = {
    "fast, no latency": ("fast", ()),
    "fast, paced": ("fast", PACED),
    "fast, --profile": ("fast", PROFILE),
    "Flask, no latency": ("Flask", ()),
    "a known required tool": ("known tool", ()),
    "a required tool, direct": ("direct tool", ()),
    "a required tool": ("tool", ()),
}
"""Title -> name of the path, and flags of the server."""
TraceFunction = Callable[[FrameType, str, object], Any]
Call = tuple[str, str]
"""File, relative to the root, and name of one of our functions."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--general", action="store_true", help="under Flask")
    parser.add_argument(
        "--profile",
        dest="flags",
        action="store_const",
        const=PROFILE,
        default=(),
        help="in the steps of an engine",
    )
    parser.add_argument(
        "--paced", dest="flags", action="store_const", const=PACED, help="token by token"
    )
    parser.add_argument("--known", action="store_true", help="a chat that must call a known tool")
    parser.add_argument(
        "--direct", action="store_true", help="a chat that must call a tool, by its handler"
    )
    parser.add_argument(
        "--tool", action="store_true", help="a chat that must call a tool, under Flask"
    )
    parser.add_argument(
        "--summary", action="store_true", help="only the totals, of all paths and the KV index"
    )
    parser.add_argument(
        "--bytecodes", action="store_true", help="only the number of bytecodes, of all paths"
    )
    options = parser.parse_args()
    if options.bytecodes:
        for title, (path, flags) in PATHS.items():
            serve = warm_client(path, flags)
            print(f"{title}: {median(bytecodes(serve) for _ in range(REQUESTS)):.0f} bytecodes")
        return 0
    if options.summary:
        for title, (path, flags) in PATHS.items():
            print(f"{title}:")
            show(calls_of(path, flags), with_calls=False)
        for title, calls in index_calls().items():
            print(f"{title}:", totals(calls), sep="\n")
        return 0
    path = "fast"
    if options.tool:
        path = "tool"
    elif options.known:
        path = "known tool"
    elif options.direct:
        path = "direct tool"
    elif options.general:
        path = "Flask"
    show(calls_of(path, options.flags), with_calls=True)
    return 0


def calls_of(path: str, flags: Sequence[str]) -> list[Call]:
    """Returns the calls of one request on a warm server.

    It is the median of several requests, as clocks and replies differ.
    """
    serve = warm_client(path, flags)
    traces = [traced(serve) for _ in range(REQUESTS)]
    return sorted(traces, key=len)[REQUESTS // 2]


def warm_client(path: str, flags: Sequence[str]) -> Callable[[], None]:
    """Returns a function that sends a request to a warm server."""
    app = create_app(load(["--seed", "7", *flags], {}))
    turns = FairTurns()
    clients: list[Callable[[], None]] = []
    for _ in range(CLIENTS):
        if path in FAST_BODIES:
            clients.append(fast_client(app, turns, FAST_BODIES[path]))
        else:
            clients.append(flask_client(app, TOOL_BODY if path == "tool" else BODY))

    def warm_up(serve: Callable[[], None]) -> None:
        for _ in range(WARM_UP // CLIENTS):
            serve()

    gevent.joinall([gevent.spawn(warm_up, client) for client in clients])
    return clients[0]


def bytecodes(serve: Callable[[], None]) -> int:
    """Returns how many bytecodes our functions run while `serve` runs.

    Unlike times, the number does not depend on other processes.
    """
    count = 0

    def trace_call(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if not frame.f_code.co_filename.startswith(OUR_FOLDERS):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return count_bytecode

    def count_bytecode(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        if event == "opcode":
            count += 1
        return count_bytecode

    sys.settrace(trace_call)
    try:
        serve()
    finally:
        sys.settrace(None)
    return count


def traced(serve: Callable[[], None]) -> list[Call]:
    """Returns the calls of our functions while `serve` runs, in order."""
    calls: list[Call] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OUR_FOLDERS):
            calls.append((code.co_filename[len(str(ROOT)) + 1 :], code.co_qualname))

    sys.setprofile(profile)
    try:
        serve()
    finally:
        sys.setprofile(None)
    return calls


def fast_client(app: Understudy, turns: FairTurns, body: bytes) -> Callable[[], None]:
    """Returns a function that sends a request with `body` to a connection of a worker.

    All clients of the worker share `turns`.
    """
    log = ServerLogger(Config())
    log.access_log.setLevel(logging.CRITICAL)
    path = FastPath(
        app,
        log,
        turns=turns,
        connections={},
        idle_s=60.0,
        serve_general=_reject_general_path,
    )
    listener = gevent.socket.socketpair()
    client, server = listener
    FastConnection(path, server, ("127.0.0.1", 0), None)

    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def serve() -> None:
        client.sendall(request)
        received = b""
        while b"[DONE]" not in received:
            received += client.recv(65536)

    return serve


def _reject_general_path(*request: object) -> None:
    sys.exit("the connection left the request to the general path")


def flask_client(app: Understudy, body: bytes) -> Callable[[], None]:
    """Returns a function that serves a request with `body` under Flask, as our worker does."""

    def serve() -> None:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/v1/chat/completions",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
        }
        environ[CONTEXT] = context_of(environ)
        response = app(environ, _start_response)  # type: ignore[arg-type]
        b"".join(response)
        close = getattr(response, "close", None)
        if close is not None:
            close()

    return serve


def _start_response(status: str, headers: list[tuple[str, str]]) -> None:
    """Ignores status and headers."""


def show(calls: list[Call], with_calls: bool) -> None:
    """Prints the totals of the calls, and the calls themselves if `with_calls`."""
    rooms = [room for room, _ in groupby(map(_room, _files_before_submit(calls)))]
    reentered = sorted({room for room in rooms if rooms.count(room) > 1})
    if with_calls:
        for file, group in groupby(calls, key=itemgetter(0)):
            print(file, *(f"    {name}" for _, name in group), sep="\n")
        print()
    print(totals(calls))
    print("rooms until submit:", " > ".join(rooms))
    print("entered again before submit:", ", ".join(reentered) or "none")


def totals(calls: list[Call]) -> str:
    """Returns the number of calls, of files, and of changes of file."""
    files = [file for file, _ in calls]
    changes = sum(file != next_file for file, next_file in pairwise(files))
    return f"{len(calls)} calls, {len(set(files))} files, {changes} changes of file"


def index_calls() -> dict[str, list[Call]]:
    """Returns the calls of the KV index for one block.

    They are those of its event, from the queue into the table, and those of a score.
    """
    index = Index(MemoryBackend())
    pool = Pool(index, PoolSettings(shards=1), clock=float)
    tokens = list(range(index.block_size))
    encode = encoder("map")

    def publish(number: int) -> None:
        event = BlockStored(
            [number + 1],
            number or None,
            token_ids=tokens,
            block_size=index.block_size,
            lora_id=None,
        )
        batch = encode(EventBatch(float(number), [event], 0))
        pool.put(PublishedMessage("pod", "m", number, batch))

    def process() -> None:
        pool.process(pool.shards[0])

    def score() -> None:
        index.score("m", tokens)

    for number in range(WARM_UP):
        publish(number)
        process()
    publish(WARM_UP)
    score()
    return {"one KV event": traced(process), "one score": traced(score)}


def _files_before_submit(calls: list[Call]) -> list[str]:
    names = [name.rpartition(".")[2] for _, name in calls]
    return [file for file, _ in calls[: names.index("submit") + 1]]


def _room(file: str) -> str:
    return "/".join(file.split("/")[1:-1][:3]) or file


if __name__ == "__main__":
    sys.exit(main())
