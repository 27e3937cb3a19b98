"""How long GET /health takes beside a stream of hostile templates and rules: a row of
`benchmarks.stalls`.

One server is measured in rounds, each without the clients first, then beside them. The clients send
one request after another:

* rules to be compiled: templates that are deep, long or fold to long constants, and unrolled
  regexes
* chats that bring their own template, which loops or allocates
* chats that thousands of slow rules are compared with, and whose rule works through long texts
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle

from benchmarks import health
from benchmarks.connections import HOST, PATH, exchange
from benchmarks.processes import children
from benchmarks.replies import RefusedError
from benchmarks.servers import Load, Server, ours

NAME = "hostile templates and rules"
QUIET_S = 4.0
HOSTILE_S = 8.0
"""Seconds of a round without and with the hostile clients."""
SETTINGS = {"SIM_TRUST_REQUEST_CHAT_TEMPLATE": "true", "SIM_MAX_MODEL_LEN": "300000"}
RULES = "/admin/script/rules"
SLOW_RULES = 5_000
"""Rules with a slow regex; 200 bytes a rule are reckoned of 2 MiB."""

TEMPLATES = (
    "{{ message" + "|json" * 200 + " }}",
    "{{ 'a'" + "|json" * 90 + " }}",
    "{{ message" + ".a" * 300 + " }}",
    "{{ 1" + " + 1" * 3_000 + " }}",
    "{{ message }}" * 19_000,
    "{# #}" * 50_000,
    "{% if message %}" * 150 + "{% endif %}" * 150,
    "{{ message|json }}" * 240,
)
REGEXES = ("a{65535}" * 400, "(?:a{1000}b){1000}" * 20, "(" * 900 + "a" + ")" * 900, "a{9000}")
CHAT_TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 'a' * 10 ** 8 }}",
    "{{ 10 ** (10 ** 8) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ message" + "|tojson" * 200 + " }}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{{ lipsum(n=100000) }}",
)


def _request(method: str, path: str, body: object, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {HOST}",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def _chat(text: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}


def rule_requests() -> Iterator[bytes]:
    """Rules to be compiled, each alone and many at once."""
    rules: list[object] = [{"then": {"text": text}} for text in TEMPLATES]
    rules += [{"when": {"message": {"regex": regex}}, "then": "pass"} for regex in REGEXES]
    for rule in rules:
        yield _request("PUT", f"{RULES}?scope=alone", {"rules": [rule]})
    many = [{"then": {"text": "{{ message|upper|lower }}" * 30}}] * 500
    yield _request("PUT", f"{RULES}?scope=many", {"rules": many})


def template_requests() -> Iterator[bytes]:
    """Chats that bring their own template."""
    for template in CHAT_TEMPLATES:
        yield _request("POST", PATH, _chat("hi", chat_template=template))


def matching_requests() -> Iterator[bytes]:
    """Chats that slow rules are compared with, and that are answered by a template with much work."""
    for scope, text in (
        ("slow", "a" * 3_000 + "!"),
        ("slow", "a" * 250_000),
        ("work", '"' * 60_000),
    ):
        yield _request("POST", PATH, _chat(text), f"X-Understudy-Scope: {scope}")


STREAMS: Sequence[Callable[[], Iterator[bytes]]] = (
    rule_requests,
    template_requests,
    matching_requests,
)
"""What each hostile client sends, again and again."""


def measure(rounds: int = health.ROUNDS) -> tuple[health.HealthFigures, bool]:
    """Measures one server in rounds. Returns the figures, and whether its worker still lives."""
    with ours(Load(streams=512), extra_settings=SETTINGS) as server:
        _set_rules(server)
        figures = health.HealthFigures([_round(server) for _ in range(rounds)])
        lives = server.worker in children(server.arbiter)
    return figures, lives


def _set_rules(server: Server) -> None:
    """Sets the rules that `matching_requests` are compared with."""
    slow = {"when": {"message": {"regex": "(a|aa)+$"}}, "then": {"text": "never"}}
    work = {"then": {"text": "{% if message|upper|lower|title|json|upper %}{% endif %}" * 60}}
    with socket.create_connection((HOST, server.port), timeout=120.0) as client:
        exchange(client, _request("PUT", f"{RULES}?scope=slow", {"rules": [slow] * SLOW_RULES}))
        exchange(client, _request("PUT", f"{RULES}?scope=work", {"rules": [work]}))


def _round(server: Server) -> health.HealthRound:
    quiet_ms = health.probed(server.port, QUIET_S)
    clients = [
        multiprocessing.Process(target=_send, args=(server.port, stream), daemon=True)
        for stream in STREAMS
    ]
    for client in clients:
        client.start()
    try:
        hostile_ms = health.probed(server.port, HOSTILE_S)
    finally:
        for client in clients:
            client.kill()
            client.join()
    return health.round_of(hostile_ms, quiet_ms)


def _send(port: int, stream: Callable[[], Iterator[bytes]]) -> None:
    """Sends the requests of a hostile client, each when the one before is answered, until it is
    killed.
    """
    os.nice(5)  # one core is the server's and that of the client that is measured
    requests = [*stream()]
    for data in cycle(requests):
        with suppress(OSError, RefusedError), socket.create_connection((HOST, port)) as client:
            exchange(client, data)
