"""Compares the answers of two versions to a recorded client. Start reading at `compare_answers`.

Servers of this process answer the recorded requests, as the old and the new version, and `drift`'s
comparison finds where the shapes of the answers differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

import gevent

from app.core.application import create_app
from app.core.server.flask.application import Understudy
from app.core.server.http.client_connection import BrokenOffError
from app.core.settings import load
from app.extensions.recording.comparison import (
    SHAPE_AND_CONSTANTS,
    ReceivedAnswer,
    Shapes,
    differences,
    shapes_of,
)
from app.extensions.recording.drift import MAX_DIFFERENCES, sent_parts
from app.extensions.recording.exchange import HEADER_START, Exchange, RecordedRequest, bytes_of
from app.extensions.recording.lines import recorded
from app.extensions.recording.request_form import json_object
from config.declaration import ConfigError
from config.files import open_file
from vllm_facts.models import find_model
from vllm_facts.version import FIRST, NEWEST, PATCHES
from workbench.check.findings import Finding, Place
from workbench.check.rules import finding

MAX_EXCHANGES = 1_000
"""Most requests that are compared; a chat takes about 5 ms for each version."""
MAX_BYTES = 256 << 20
"""Size of a recording, which is kept in memory."""
MAX_MODELS = 50
_MODEL = re.compile(r"[\w./:@+-]{1,200}", re.ASCII)
"""A model that a server can have; requests for others fail in both versions."""
ANSWER_SECONDS = 5.0
"""Time for an answer. A recorded request can slow the requests after it down."""
COMPARISON_SECONDS = 60.0
"""Time for all answers; the request that is compared at its end is the last one."""
DEFAULT_PARSERS = {"tool-call-parser": "hermes"}
"""Parser of a model without a recipe, so that requests with tools are answered."""


class ChangedAnswer(NamedTuple):
    """A kind of difference, and the requests with it."""

    request: str
    lines: tuple[str, ...]


def is_recording(path: str) -> bool:
    """Returns whether a regular file begins like a recording."""
    with suppress(OSError), open_file(path, accepts_pipes=False) as file:
        return file.read(len(HEADER_START)) == HEADER_START
    return False


def compare_answers(
    path: str, old: str, new: str, now: Callable[[], float] = monotonic
) -> Iterator[Finding]:
    """Yields the differences in the answers to a recorded client.

    Without a simulated version `old`, the recorded answers are the old ones. `now` returns seconds.

    Raises:
        ConfigError: The file is too large.
        RecordingError: The file cannot be read, or is not a recording.
    """
    simulated = tuple(PATCHES)
    if new not in simulated:
        message = f"the answers of {new} are not known; known are {FIRST} to {NEWEST}"
        yield finding("F501", Place(path, 1, 1), message)
        return
    if os.path.getsize(path) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    exchanges: list[tuple[int, Exchange]] = []
    for number, exchange in recorded(path):
        if len(exchanges) == MAX_EXCHANGES:
            message = f"only the first {MAX_EXCHANGES:,} requests are compared"
            yield finding("F501", Place(path, number, 1), message)
            break
        exchanges.append((number, exchange))
    models = _models(exchanges)
    new_server = _server(new, models)
    old_server = _server(old, models) if old in simulated else None
    old_name = old if old_server is not None else "recorded"
    numbers: dict[ChangedAnswer, list[int]] = {}
    equal_count = 0
    count = 0
    end_s = now() + COMPARISON_SECONDS
    for number, exchange in exchanges:
        if now() >= end_s:
            message = f"only {count} requests are compared, which took {COMPARISON_SECONDS:.0f} s"
            yield finding("F501", Place(path, number, 1), message)
            break
        count += 1
        new_shapes = _answered(new_server, exchange.request)
        old_shapes = _recorded(exchange)
        if old_server is not None:
            old_shapes = _answered(old_server, exchange.request)
        lines = tuple(differences(old_shapes, new_shapes, (old_name, new)))
        if not lines:
            equal_count += 1
            continue
        target = exchange.request.target.partition("?")[0]
        changed = ChangedAnswer(f"{exchange.request.method} {target}", lines[:MAX_DIFFERENCES])
        numbers.setdefault(changed, []).append(number)
    for changed, lines_of_file in numbers.items():
        more = len(lines_of_file) - 1
        others = f" (and {more} more requests)" if more else ""
        message = f"{changed.request}{others}: {'; '.join(changed.lines)}"
        yield finding("U604", Place(path, lines_of_file[0], 1), message)
    message = f"{equal_count} of {count} recorded requests get an answer of the same shape"
    yield finding("U605", Place(path, 1, 1), f"{message} from vLLM {new}")


def _models(exchanges: list[tuple[int, Exchange]]) -> list[str]:
    """Returns the models that the requests ask for, in their order."""
    models: dict[str, None] = {}
    for _, exchange in exchanges:
        fields = json_object(bytes_of(exchange.request.body)) or {}
        model = fields.get("model")
        if isinstance(model, str) and _MODEL.fullmatch(model) and len(models) < MAX_MODELS:
            models[model] = None
    return list(models)


def _server(version: str, models: list[str]) -> Understudy:
    """Returns a server of a version that serves the models under all their names."""
    parsers = dict(DEFAULT_PARSERS)
    with suppress(ConfigError):
        found = find_model(models[0]) if models else None
        if found is not None and found[1].tool_parser:
            parsers["tool-call-parser"] = found[1].tool_parser
        if found is not None and found[1].reasoning_parser:
            parsers["reasoning-parser"] = found[1].reasoning_parser
    flags = ["--vllm-version", version, "--seed", "1", "--force-dummy-tokenizer"]
    flags += ["--enable-auto-tool-choice", *(f"--{name}={text}" for name, text in parsers.items())]
    if models:
        flags.append(f"--served-model-name={','.join(models)}")
    return create_app(load(flags, {}))


def _answered(server: Understudy, request: RecordedRequest) -> Shapes:
    """Returns the shapes of a server's answer.

    Without an answer in time, the status is 504; for a connection that breaks off, it is 502, and
    for an invalid request, 400.
    """
    headers, body = sent_parts(request)
    headers.pop("content-length", None)
    timeout = gevent.Timeout(ANSWER_SECONDS)
    timeout.start()
    try:
        response = server.test_client().open(
            request.target, method=request.method, data=body or None, headers=headers
        )
        answer = ReceivedAnswer(
            response.status_code, list(response.headers.items()), response.get_data()
        )
    except gevent.Timeout as expired:
        if expired is not timeout:
            raise
        answer = ReceivedAnswer(504, [], b"")
    except BrokenOffError:  # by a fault that the request asks for
        answer = ReceivedAnswer(502, [], b"")
    except ValueError:  # a target or a header that no client can send
        answer = ReceivedAnswer(400, [], b"")
    finally:
        timeout.close()
    return shapes_of(answer, SHAPE_AND_CONSTANTS)


def _recorded(exchange: Exchange) -> Shapes:
    answer = exchange.answer
    received = ReceivedAnswer(answer.status, answer.headers, answer.body())
    return shapes_of(received, SHAPE_AND_CONSTANTS)
