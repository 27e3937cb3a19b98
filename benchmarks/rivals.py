"""Tokens a second of servers that run already, asked in turns: a real engine of ours, vLLM for CPUs, others.

Each `--server NAME=URL` speaks OpenAI's API and has the same model. Prompts of about a hundred tokens, which
share most of them, for 64 tokens each, greedy; so many at a time. The best round of each counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

from benchmarks.engine import TEXT, TOPICS
from benchmarks.options import counts, parser
from benchmarks.report import number, ratio, show, show_machine
from benchmarks.rounds import interleaved

PATIENCE_S = 120.0


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    servers = dict(words.split("=", 1) for words in options.server)
    models = {name: _model(url) for name, url in servers.items()}

    def measure(subject: tuple[int, str]) -> float:
        together, name = subject
        rounds[subject] = rounds.get(subject, 0) + 1
        return _rate(servers[name], models[name], together, rounds[subject], options.tokens)

    rounds: dict[tuple[int, str], int] = {}
    subjects = [(together, name) for together in options.sequences for name in servers]
    best = {subject: max(seen) for subject, seen in interleaved(subjects, options.rounds, measure).items()}
    first = next(iter(servers))
    rows = [
        [str(together), name, number(rate, 1), ratio(best[together, first], rate)]
        for (together, name), rate in best.items()
    ]
    show("Tokens a second", ("sequences", "server", "tokens/s", f"{first} has"), rows)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("rivals", __doc__)
    flags.add_argument("--server", action="append", required=True, metavar="NAME=URL")
    flags.add_argument("--sequences", type=counts, default=[1, 4, 8, 16], help="numbers, with commas")
    flags.add_argument("--tokens", type=int, default=64, help="length of a reply")
    return flags.parse_args(argv)


def _model(url: str) -> str:
    return json.loads(_ask(url, "GET", "/v1/models"))["data"][0]["id"]  # type: ignore[no-any-return]


def _rate(url: str, model: str, together: int, round_number: int, tokens: int) -> float:
    """New tokens a second of `together` requests that come at once; prompts are new in each round."""
    prompts = [f"{TEXT}Tell me about {topic}, {round_number}." for topic in TOPICS.split()[:together]]
    asked = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(together) as pool:
        begun = time.perf_counter()
        bodies = [json.dumps(asked | {"prompt": prompt}) for prompt in prompts]
        answers = list(pool.map(lambda body: _ask(url, "POST", "/v1/completions", body), bodies))
        took_s = time.perf_counter() - begun
    return sum(int(json.loads(answer)["usage"]["completion_tokens"]) for answer in answers) / took_s


def _ask(url: str, method: str, path: str, body: str | None = None) -> bytes:
    """The body of the answer. RuntimeError when its status is not 200."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{url}{path}: {answer.status} {text[:200]!r}")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
