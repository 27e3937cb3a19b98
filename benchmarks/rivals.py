"""Tokens a second of engines behind HTTP, asked in short turns: ours, vLLM for CPUs, llama.cpp,
others.

Each speaks OpenAI's API and has the same model: `--server NAME=URL` runs already, `--start
"NAME=COMMAND"` is started here, at this priority, with {port} for its port. Prompts of about a
hundred tokens, which share most of them, for 64 tokens each, greedy; so many at a time. `--prefix`
puts words before them that are new in each round. Medians of all rounds count, and how far rounds
are apart is shown. `--beside` measures once more, beside a process that keeps one core busy.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from benchmarks.engine import TEXT, TOPICS
from benchmarks.options import counts, parser
from benchmarks.report import number, ratio, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import free_port

PATIENCE_S = 120.0
START_S = 300.0
"""Longest start; vLLM's default mode compiles."""


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    with ExitStack() as started:
        servers = dict(words.split("=", 1) for words in options.server)
        for words in options.start:
            name, command = words.split("=", 1)
            servers[name] = started.enter_context(_running(command))
        _measure_all(servers, options, "quiet")
        if options.beside:
            started.enter_context(_process([sys.executable, "-c", "while True: pass"]))
            _measure_all(servers, options, "beside a busy core")
    return 0


def _measure_all(servers: dict[str, str], options: argparse.Namespace, title: str) -> None:
    models = {name: _model(url) for name, url in servers.items()}

    def measure(subject: tuple[int, str]) -> float:
        together, name = subject
        rounds[subject] = rounds.get(subject, 0) + 1
        return _rate(
            servers[name],
            models[name],
            together=together,
            round_number=rounds[subject],
            tokens=options.tokens,
            prefix_words=options.prefix,
        )

    rounds: dict[tuple[int, str], int] = {}
    subjects = [(together, name) for together in options.sequences for name in servers]
    for subject in subjects:  # what is compiled, packed or found by trials at first
        measure(subject)
    seen = interleaved(subjects, options.rounds, measure)
    middle = {subject: statistics.median(rates) for subject, rates in seen.items()}
    first = next(iter(servers))
    rows = [
        [
            *(str(together), name, number(rate, 1)),
            share((max(seen[together, name]) - min(seen[together, name])) / rate),
            ratio(middle[together, first], rate),
        ]
        for (together, name), rate in middle.items()
    ]
    show(
        f"Tokens a second, {title}",
        ("sequences", "server", "median", "spread", f"{first} has"),
        rows,
    )


@contextmanager
def _process(words: Sequence[str]) -> Iterator[None]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _running(command: str) -> Iterator[str]:
    """The URL of a server, once it answers. TimeoutError when it does not in `START_S`."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with _process([word.replace("{port}", str(port)) for word in shlex.split(command)]):
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            try:
                _model(url)
            except (OSError, HTTPException, RuntimeError):
                time.sleep(0.5)
            else:
                yield url
                return
        raise TimeoutError(f"{command} does not answer")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("rivals", __doc__, rounds=5)
    flags.add_argument("--server", action="append", default=[], metavar="NAME=URL")
    flags.add_argument("--start", action="append", default=[], metavar="NAME=COMMAND")
    flags.add_argument("--beside", action="store_true", help="once more, beside a busy core")
    flags.add_argument(
        "--sequences", type=counts, default=[1, 4, 8, 16], help="numbers, with commas"
    )
    flags.add_argument("--tokens", type=int, default=64, help="length of a reply")
    flags.add_argument("--prefix", type=int, default=0, help="words before all prompts of a round")
    return flags.parse_args(argv)


def _model(url: str) -> str:
    return json.loads(_ask(url, "GET", "/v1/models"))["data"][0]["id"]  # type: ignore[no-any-return]


def _rate(
    url: str, model: str, together: int, round_number: int, tokens: int, prefix_words: int
) -> float:
    """New tokens a second of `together` requests that come at once; prompts are new in each round."""
    topics = TOPICS.split()
    words = random.Random(f"{together} {round_number}").choices(topics, k=prefix_words)
    text = "".join(f"{word} " for word in words) + TEXT
    prompts = [f"{text}Tell me about {topic}, {round_number}." for topic in topics[:together]]
    request = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(together) as pool:
        begun = time.perf_counter()
        bodies = [json.dumps(request | {"prompt": prompt}) for prompt in prompts]
        answers = list(pool.map(partial(_ask, url, "POST", "/v1/completions"), bodies))
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
