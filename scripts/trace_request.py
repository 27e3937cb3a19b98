"""Prints the way of one request through our own code: every call, and what they come to.

    $ python scripts/trace_request.py            # a three-token chat stream on the fast path
    $ python scripts/trace_request.py --general  # the same under Flask
    $ python scripts/trace_request.py --profile  # on the fast path, in the steps of an engine
    $ python scripts/trace_request.py --tool     # a chat that must call a tool, under Flask
    $ python scripts/trace_request.py --summary  # only the figures, of all three and of the KV index

A *change of file* is a call that is made in another file than the call before it; a *room* is a
folder of `app`, such as `core/api` or `core/server/gunicorn`.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import logging  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from itertools import groupby  # noqa: E402
from pathlib import Path  # noqa: E402
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
from app.extensions.kv_index.index import Index  # noqa: E402
from app.extensions.kv_index.memory import MemoryBackend  # noqa: E402
from app.extensions.kv_index.messages import PublishedMessage  # noqa: E402
from app.extensions.kv_index.pool import Pool  # noqa: E402
from app.extensions.kv_index.resources import PoolSettings  # noqa: E402
from config.loader import load  # noqa: E402

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
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
WARM_UP, CLIENTS = 600, 12
REQUESTS = 9
"""Requests that are traced, of which the median is shown."""
PROFILE = "qwen3-14b-h100"
OWN = (str(ROOT / "app"), str(ROOT / "config"))
Call = tuple[str, str]
"""File, from the root on, and name of a function of ours."""


def traced(serve: Callable[[], None]) -> list[Call]:
    """Our own calls while `serve` runs, in order."""
    calls: list[Call] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN):
            calls.append((code.co_filename[len(str(ROOT)) + 1 :], code.co_qualname))

    sys.setprofile(profile)
    try:
        serve()
    finally:
        sys.setprofile(None)
    return calls


def fast(app: Understudy, turns: FairTurns | None = None) -> Callable[[], None]:
    """Serves the request on the fast path of a worker; `turns` of all its clients together."""
    log = ServerLogger(Config())
    log.access_log.setLevel(logging.CRITICAL)
    path = FastPath(
        app,
        log,
        turns or FairTurns(),
        {},
        60.0,
        lambda *request: sys.exit("left to the general way"),
    )
    listener = gevent.socket.socketpair()
    client, server = listener
    FastConnection(path, server, ("127.0.0.1", 0), None)

    def serve() -> None:
        client.sendall(REQUEST)
        received = b""
        while b"[DONE]" not in received:
            received += client.recv(65536)

    return serve


def general(app: Understudy, asked: bytes = BODY) -> Callable[[], None]:
    """Serves the request `asked` under Flask, as our worker does."""
    from io import BytesIO

    def serve() -> None:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/v1/chat/completions",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(asked)),
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(asked),
            "wsgi.errors": sys.stderr,
        }
        environ[CONTEXT] = context_of(environ)
        body = app(environ, lambda status, headers: None)  # type: ignore[arg-type, return-value]
        b"".join(body)
        getattr(body, "close", lambda: None)()

    return serve


def show(calls: list[Call], with_calls: bool) -> None:
    """Print the calls, and what they come to."""
    rooms = [room for room, _ in groupby(map(_room, _before_submit(calls)))]
    again = sorted({room for room in rooms if rooms.count(room) > 1})
    if with_calls:
        for file, group in groupby(calls, key=lambda call: call[0]):
            print(file, *(f"    {name}" for _, name in group), sep="\n")
        print()
    print(figures(calls))
    print("rooms until submit:", " > ".join(rooms))
    print("entered again before submit:", ", ".join(again) or "none")


def figures(calls: list[Call]) -> str:
    """How many calls, in how many files, with how many changes of file."""
    files = [file for file, _ in calls]
    changes = sum(one != other for one, other in zip(files, files[1:], strict=False))
    return f"{len(calls)} calls, {len(set(files))} files, {changes} changes of file"


def index_ways() -> dict[str, list[Call]]:
    """The calls of one KV event of a block, from the queue into the table, and of a score of that
    block.
    """
    index = Index(MemoryBackend())
    pool = Pool(index, PoolSettings(shards=1), clock=lambda: 0.0)
    tokens, encode = list(range(index.block_size)), encoder("map")

    def publish(number: int) -> None:
        event = BlockStored([number + 1], number or None, tokens, index.block_size, None)
        pool.put(
            PublishedMessage("pod", "m", number, encode(EventBatch(float(number), [event], 0)))
        )

    for number in range(WARM_UP):
        publish(number)
        pool.process(pool.shards[0])
    publish(WARM_UP)
    index.score("m", tokens)
    return {
        "one KV event": traced(lambda: pool.process(pool.shards[0])),
        "one score": traced(lambda: index.score("m", tokens)),
    }


def _before_submit(calls: list[Call]) -> list[str]:
    names = [name.rpartition(".")[2] for _, name in calls]
    return [file for file, _ in calls[: names.index("submit") + 1]]


def _room(file: str) -> str:
    return "/".join(file.split("/")[1:-1][:3]) or file


WAYS = {
    "fast, no latency": ("fast", False),
    "fast, --profile": ("fast", True),
    "Flask, no latency": ("Flask", False),
    "a required tool": ("tool", False),
}


def main() -> int:
    """Exit status."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--general", action="store_true", help="under Flask")
    options.add_argument("--profile", action="store_true", help="in the steps of an engine")
    options.add_argument(
        "--tool", action="store_true", help="a chat that must call a tool, under Flask"
    )
    options.add_argument(
        "--summary", action="store_true", help="only the figures, of all ways and of the KV index"
    )
    asked = options.parse_args()
    if not asked.summary:
        way = "tool" if asked.tool else "Flask" if asked.general else "fast"
        show(calls_of(way, asked.profile), with_calls=True)
        return 0
    for title, (way, has_profile) in WAYS.items():
        print(f"{title}:")
        show(calls_of(way, has_profile), with_calls=False)
    for title, calls in index_ways().items():
        print(f"{title}:", figures(calls), sep="\n")
    return 0


def calls_of(way: str, has_profile: bool) -> list[Call]:
    """The calls of one request on a warm server:

    the median of several, as clocks and replies differ.
    """
    profile = ("--profile", PROFILE) if has_profile else ()
    app = create_app(load(("--seed", "7", *profile), {}))
    body = TOOL_BODY if way == "tool" else BODY
    turns = FairTurns()
    clients = [fast(app, turns) if way == "fast" else general(app, body) for _ in range(CLIENTS)]

    def warm_up(serve: Callable[[], None]) -> None:
        for _ in range(WARM_UP // CLIENTS):
            serve()

    gevent.joinall(
        [gevent.spawn(warm_up, each) for each in clients]
    )  # what is made once is made now
    serve = clients[0]
    return sorted([traced(serve) for _ in range(REQUESTS)], key=len)[REQUESTS // 2]


if __name__ == "__main__":
    sys.exit(main())
