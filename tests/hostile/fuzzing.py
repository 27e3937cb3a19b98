"""Requests for every route of a server, made from its own /openapi.json, from good ones, and
damaged.

All of it follows from a seed: what fails once fails again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

from app.extensions.forms.schema import SchemaError, Schemas
from config.settings import ToolSettings

GOOD: Mapping[str, Sequence[Any]] = {
    path: bodies
    for paths, bodies in json.loads(
        Path(__file__).with_name("good_bodies.json").read_text()
    ).items()
    for path in paths.split()
}
"""Bodies that every route takes, of many kinds: what a fuzzer begins with."""
NUMBERS: list[Any] = [
    0,
    -1,
    1,
    2,
    17,
    1.5,
    2**31,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
    1e-300,
    -1e308,
]
NUMBERS += [nan, inf, -inf]
TEXTS_OF_EVIL = [
    "",
    " ",
    "\0",
    "\ud800",
    "é" * 999,
    "a" * 20_000,
    "{",
    "</tool_call>",
    "9" * 5000,
    "None",
]
TEXTS_OF_EVIL += ["\u202e", "🦉"]
VALUES: list[Any] = [*NUMBERS, *TEXTS_OF_EVIL, None, True, False]
VALUES += [[], {}, [None], [[]], {"": None}, [{}] * 300, {"a": {"b": 1}}]
DEEP = 300
FAULTS = """\
rate-limit; rate=1e-300
rate-limit; rate=nan
rate-limit; rate=inf; burst=-1
truncate; after=1e9
stall; seconds=0.001; after=99999999999999999999
error; status=429; retry_after=-1
empty; every=0
malformed-chunk; chunk=2
disconnect; after=1
{"action": "error", "status": 418, "headers": {"a": 1}}
{"action": ["error"]}
error; probability=1e400
[[[[
slow-first-token; seconds=1e-9
;;;
=;="""
HEADERS: Mapping[str, Sequence[str]] = {
    "X-Fault": FAULTS.splitlines(),
    "X-Return-Error": ("abc", "399", "600", "1e3", "418", "+404", "\u0665", "-1", "4" * 50),
    "X-Request-Id": ("a" * 3000, "a b", "{}", "\u00e9", "\x7f"),
    "X-data-parallel-rank": ("0", "1", "-1", "x", "9" * 30, "\u00b2"),
    "X-Vllm-Priority": ("1", "-99999999999999999999", "x", "1e9"),
    "endpoint-load-metrics-format": ("TEXT", "JSON", "BIN", ""),
    "Authorization": ("Bearer", "Bearer ", "Basic x", "\u00ff"),
    "traceparent": (
        "00-" + "0" * 32,
        "zz",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    "Content-Type": ("text/plain", "application/json; charset=utf-16", "", "application/json;;"),
    "Content-Encoding": ("gzip", "x"),
    "X-Send-Image": ("true", "maybe"),
    "X-Session-ID": ("a" * 999,),
    "Origin": ("null", "http://a b"),
    "Accept": ("text/event-stream", "*/*;q=x"),
}
QUERIES = [
    "",
    "",
    "",
    "?level=9",
    "?level=x&mode=abort",
    "?mode=wait&mode=wait",
    "?tags=weights&tags=x",
]
QUERIES += ["?check=true", "?%ff=%", "?a[]=1", "?over=true"]


@dataclass(frozen=True, slots=True)
class FuzzedRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None


class Fuzzer:
    """Draws requests for the routes of `document` but those that `spared` names."""

    def __init__(self, document: Mapping[str, Any], seed: int, spared: Sequence[str] = ()) -> None:
        self._rng = Random(seed)
        self._document = document
        self._schemas = Schemas()
        self._operations = [
            (method.upper(), path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if path not in spared
        ]

    def requests(self, number: int) -> Iterator[FuzzedRequest]:
        """So many requests; the more ways there are to ask a route, the more often it is asked."""
        weights = [
            1 + 3 * ("requestBody" in operation) + 4 * len(GOOD.get(path, ()))
            for _, path, operation in self._operations
        ]
        for method, path, operation in self._rng.choices(self._operations, weights, k=number):
            yield self._request(method, path, operation)

    def _request(self, method: str, path: str, operation: Mapping[str, Any]) -> FuzzedRequest:
        rng = self._rng
        if rng.random() < 0.02:
            method = rng.choice(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW"))
        target = path.replace(
            "{response_id}", rng.choice(("resp_1", "%00", "a" * 999, "\u00e9".encode().hex()))
        )
        headers = {"Content-Type": "application/json"}
        if rng.random() < 0.15:
            name = "X-Fault" if rng.random() < 0.4 else rng.choice(list(HEADERS))
            headers[name] = rng.choice(HEADERS[name]).encode("utf-8").decode("latin-1")
        body = self._body(path, operation) if method in ("POST", "PUT") else None
        return FuzzedRequest(method, target + rng.choice(QUERIES), headers, body)

    def _body(self, path: str, operation: Mapping[str, Any]) -> bytes:
        rng = self._rng
        value = self._value(path, operation)
        for _ in range(rng.choice((0, 0, 1, 1, 1, 1, 2, 3))):
            value = self._mutated(value)
        written = json.dumps(value).encode()
        return self._damaged(written) if rng.random() < 0.06 else written

    def _value(self, path: str, operation: Mapping[str, Any]) -> Any:
        """A body that should do:

        a good one, perhaps with fields that the schema knows; or one of its own.
        """
        rng = self._rng
        good = deepcopy(self._rng.choice(GOOD.get(path, ({},))))
        if "requestBody" not in operation or rng.random() < 0.5:
            return good
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": self._document["components"]}
        try:
            drawn = self._schemas.compile(whole, lenient=True).sample(
                rng, ToolSettings(tool_call_not_required_param_probability=20)
            )
        except SchemaError:
            drawn = {}
        if not isinstance(drawn, dict) or rng.random() < 0.1:
            return drawn
        names = rng.sample(list(drawn), min(len(drawn), rng.choice((1, 1, 2))))
        return {**{name: drawn[name] for name in names}, **good}

    def _mutated(self, value: Any) -> Any:
        """`value` with one place changed."""
        rng = self._rng
        holders = [container for container in _containers(value) if container]
        if not holders or rng.random() < 0.03:
            return self._evil(value)
        holder = rng.choice(holders)
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("extra", "", "\ud83d", "model", "__class__", "n"))] = deepcopy(
                    rng.choice(VALUES)
                )
            case 2:
                holder[key] = [holder[key]]
            case 3:
                holder[key] = str(holder[key])
            case 4 if isinstance(holder, list):
                holder.extend(deepcopy(holder) * rng.choice((1, 9)))
            case _:
                holder[key] = self._evil(holder[key])
        return value

    def _evil(self, value: Any) -> Any:
        """Something else in place of `value`, half of the time of its kind."""
        rng = self._rng
        alike = [candidate for candidate in VALUES if type(candidate) is type(value)]
        if alike and rng.random() < 0.5:
            return deepcopy(rng.choice(alike))
        if rng.random() < 0.05:
            for _ in range(rng.choice((3, 70, DEEP))):
                value = [value] if rng.random() < 0.5 else {"a": value}
            return value
        return deepcopy(rng.choice(VALUES))

    def _damaged(self, body: bytes) -> bytes:
        rng = self._rng
        position = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                return body[:position]
            case 1:
                return body[:position] + bytes([rng.randrange(256)]) + body[position:]
            case 2:
                return b"\xef\xbb\xbf" + body
            case 3:
                return body + rng.choice((b"}", b" ", b"\0", body))
            case 4:
                return body.decode().encode("utf-16")
        return b""


def _containers(value: Any) -> Iterator[Any]:
    """Every list and object in `value`."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict | list):
            yield container
            waiting.extend(container.values() if isinstance(container, dict) else container)
