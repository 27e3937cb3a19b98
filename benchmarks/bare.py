"""The reference: what gunicorn's stock gevent worker does with an application that does nothing.

Constant bytes, nothing decoded; a stream paces itself with one `gevent.sleep` to each absolute
deadline. BARE_TOKENS is the length of a stream, BARE_TTFT_S and BARE_ITL_S its rhythm in seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import gevent

TOKENS = int(os.environ.get("BARE_TOKENS", "100"))
TTFT_S = float(os.environ.get("BARE_TTFT_S", "0"))
ITL_S = float(os.environ.get("BARE_ITL_S", "0"))

ANSWER = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"one two three four five"},'
    b'"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":8,"total_tokens":13,"completion_tokens":5}}'
)
CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """A stream for a body with "stream":true, the same short answer for everything else."""
    if b'"stream":true' in environ["wsgi.input"].read():
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return _stream()
    start_response(
        "200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(ANSWER)))]
    )
    return [ANSWER]


def _stream() -> Iterator[bytes]:
    due = time.monotonic() + TTFT_S
    for _ in range(TOKENS):
        if (wait := due - time.monotonic()) > 0:
            gevent.sleep(wait)
        yield CHUNK
        due += ITL_S
    yield DONE
