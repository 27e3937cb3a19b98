"""`python -m app drift`: ask a live server what was recorded, and tell how its answers differ."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any

import msgspec

from app.fleet.proxy import NOT_FORWARDED, READ_TIMEOUT_S
from app.load.client import Target
from app.middleware.masking import MASK
from app.recording.exchange import (
    MOST_LINE_BYTES,
    Exchange,
    RecordingError,
    bytes_of,
)
from app.recording.library import recorded
from app.recording.shapes import Seen, content_type_of, differences
from config import ConfigError
from config.flags import Parser
from config.installation import COMMAND

ABOUT = """\
Send every request of a recording to a live server, one after the other, and tell where its answers depart
from the recorded ones in shape: status, kind of content, keys, kinds of values, order of events
(docs/recording.md). Exit status 1 when some do.
"""
MOST_TOLD = 5
"""Differences of one exchange that are told."""


def run(argv: Sequence[str]) -> int:
    """Exit status."""
    try:
        return _check(_parser().parse_args(argv))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 1


def _parser() -> argparse.ArgumentParser:
    flags = Parser(prog=f"{COMMAND} drift", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("file", metavar="FILE", help="a recording of record --proxy")
    add("--target", required=True, metavar="URL", help="the live server, such as http://host:8000")
    add("--api-key", metavar="KEY", help="of the server; recorded keys are masked")
    add("--model", metavar="NAME", help="to ask for, instead of the recorded one")
    return flags


def _check(given: argparse.Namespace) -> int:
    target = Target.of(given.target)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    agree = count = 0
    for number, exchange in recorded(given.file):
        count += 1
        found = list(differences(_seen(exchange), asked(target, exchange, given.api_key, given.model)))
        agree += not found
        if found:
            request = exchange.request
            print(f"line {number}: {request.method} {request.target}: {len(found)} differences")
            print(*(f"    {line}" for line in found[:MOST_TOLD]), sep="\n", flush=True)
    print(f"{agree} of {count} exchanges agree")
    return 0 if agree == count else 1


def _seen(exchange: Exchange) -> Seen:
    answer = exchange.answer
    body = b"".join(bytes_of(chunk.data) for chunk in answer.chunks)
    return Seen(answer.status, content_type_of(answer.header("content-type")), body)


def asked(target: Target, exchange: Exchange, key: str | None, model: str | None) -> Seen:
    """What `target` answers to a recorded request. RecordingError when it does not answer."""
    request = exchange.request
    headers = {name: value for name, value in request.headers if value != MASK and name not in NOT_FORWARDED}
    headers.pop("accept-encoding", None)
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = _with_model(bytes_of(request.body), model)
    with closing(target.connection(READ_TIMEOUT_S)) as connection:
        try:
            connection.request(request.method, target.prefix + request.target, body or None, headers)
            response = connection.getresponse()
            content = response.read(MOST_LINE_BYTES)
        except (OSError, HTTPException) as error:
            raise RecordingError(f"{target.url}: {error!r}") from None
        return Seen(response.status, content_type_of(response.getheader("content-type") or ""), content)


def _with_model(body: bytes, model: str | None) -> bytes:
    try:
        fields: Any = msgspec.json.decode(body) if model else None
    except msgspec.MsgspecError:
        return body
    if isinstance(fields, dict) and "model" in fields:
        return msgspec.json.encode({**fields, "model": model})
    return body
