"""`python -m app record`: sends a load to a live server and records the times of each request."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

import msgspec

from app.lab.load.loads import MOST_TOKENS, LoadTrace, Recipe, draw_load, lengths, read_trace
from app.lab.load.recording_client import RecordError, RecordingClient, Wanted, completion
from app.lab.load.report import check_target, progress_of, whole_file, write_rows
from app.serving.http.client import Target, exchange
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, as_command, number_of, whole_number

ABOUT = f"""\
Send a load to a live server (vLLM, or this one), and write when each request was sent, and when its first and
its last token came: what {COMMAND} calibrate makes a profile of (docs/fidelity.md, "From a real vLLM to
its understudy"). Prompts are random token ids, answers have exactly as many tokens as the load says.
With --proxy it keeps the exchanges of others instead: {COMMAND} record --proxy --help.
"""
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "send_s", "first_s", "last_s")
TOKEN_IDS = range(1000, 30000)
"""Token ids for prompts to a server without /tokenize: in most vocabularies, and special in none."""
WORDS = " ".join(one + other for one in ascii_lowercase for other in ascii_lowercase)
ANSWER_S = 10.0


@as_command(RecordError)
def run(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    check_target(given.out)
    target, load = read_target(given.target), _load(given)
    headers = {} if given.api_key is None else {"Authorization": f"Bearer {given.api_key}"}
    model = given.model or _first_model(target, headers)
    token_ids = _token_ids(target, headers, model)
    gc.collect()
    gc.disable()  # a collection would delay measured times
    try:
        with progress_of(sys.stderr, "sent", len(load), "requests") as sent:
            recording = RecordingClient(target, headers, given.in_flight, time.perf_counter, sent)
            measured = recording.run(prompts(load, model, token_ids, given.seed))
    finally:
        gc.enable()
    rows = []
    for it in measured:
        moments = (f"{at_s:.6f}" for at_s in (it.send_s, it.first_s, it.last_s))
        rows.append((f"{it.arrival_s:.6f}", it.input_tokens, it.output_tokens, *moments))
    with whole_file(given.out) as part:
        write_rows(part, COLUMNS, rows)
    late_ms = 1000 * max(it.send_s - it.arrival_s for it in measured)
    done = f"{len(measured)} requests in {measured[-1].last_s:.0f} s; sent at most {late_ms:.1f} ms late"
    held = "" if given.in_flight is None else f"; --in-flight {given.in_flight} held back sends"
    print(f"{given.out}: {done}{held}")
    return 0


def _parser() -> argparse.ArgumentParser:
    flags = FlagParser(prog=f"{COMMAND} record", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("--target", required=True, metavar="URL", help="the server, such as http://host:8000")
    add("--out", required=True, type=Path, metavar="FILE.csv[.gz]", help="file to write")
    add("--trace", type=Path, metavar="FILE", help="the load: a CSV file, see simulate")
    add("--rate", type=number_of(0, 1e6), metavar="R", help="or: requests a second, Poisson")
    add("--seconds", type=number_of(0, 1e6), default=60.0, metavar="S", help="for so long [60]")
    prompts = "of prompts, see simulate [1000]"
    add("--input-tokens", type=lengths("input"), default="1000", metavar="LENGTHS", help=prompts)
    add("--output-tokens", type=lengths("output"), default="128", metavar="LENGTHS", help="of answers [128]")
    add("--in-flight", type=whole_number(1, 10000), metavar="N", help="requests under way at most [all]")
    add("--model", metavar="NAME", help="to ask for [the first that the server serves]")
    add("--api-key", metavar="KEY", help="of the server")
    longest = whole_number(2, MOST_TOKENS)
    add("--longest", type=longest, default=4096, metavar="N", help="cuts drawn lengths [4096]")
    add("--seed", type=whole_number(0), default=1, metavar="N", help="of load and prompts [1]")
    return flags


def read_target(url: str) -> Target:
    """Returns the server at `url`. Raises ConfigError for anything but a plain HTTP URL."""
    target = Target.of(url)
    if target.scheme != "http":
        raise ConfigError(f"target {url}: must be like http://host:8000 (TLS is not measured)")
    return target


def _load(given: argparse.Namespace) -> LoadTrace:
    if (given.trace is None) == (given.rate is None):
        raise ConfigError("record: either trace or rate must be given")
    if given.trace is not None:
        return read_trace(given.trace)
    names = ("input_tokens", "output_tokens", "rate", "seconds", "seed")
    return draw_load(Recipe(**{name: getattr(given, name) for name in names}), given.longest)


def prompts(load: LoadTrace, model: str, ids: Sequence[int], seed: int) -> Iterator[Wanted]:
    """Yields the requests of a load, with random prompts; prompts of one group share a prefix."""
    for number, output in enumerate(load.output_tokens):
        prompt: list[int] = []
        if load.group and load.prefix_tokens[number]:
            shared = Random(f"{seed}/group {load.group[number]}")
            prompt = shared.choices(ids, k=load.prefix_tokens[number])
        own = Random(f"{seed}/request {number}")
        prompt += own.choices(ids, k=load.input_tokens[number] - len(prompt))
        body = completion(model, prompt, output, min_tokens=output, temperature=0)
        yield Wanted(load.arrival_s[number], body, output)


def _first_model(target: Target, headers: dict[str, str]) -> str:
    models = _ask(target, headers, "GET", "/v1/models").get("data")
    if not models:
        raise RecordError("GET /v1/models: names no model; give --model, or the server's --api-key")
    return str(models[0]["id"])


def _token_ids(target: Target, headers: dict[str, str], model: str) -> Sequence[int]:
    question = msgspec.json.encode({"model": model, "prompt": WORDS, "add_special_tokens": False})
    return sorted(set(_ask(target, headers, "POST", "/tokenize", question).get("tokens") or TOKEN_IDS))


def _ask(
    target: Target, headers: dict[str, str], method: str, path: str, body: bytes | None = None
) -> dict[str, Any]:
    """Returns the server's answer; empty for another status than 200, or another form."""
    try:
        status, answer = exchange(target.address, method, target.prefix + path, body, ANSWER_S, headers)
        return msgspec.json.decode(answer, type=dict[str, Any]) if status == 200 else {}
    except OSError as error:
        raise RecordError(f"{target.address}: {error}") from None
    except msgspec.MsgspecError:
        return {}
