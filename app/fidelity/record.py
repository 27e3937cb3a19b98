"""`python -m app record`: send a load to a live server, and write down what it did."""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import io
import math
import sys
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from string import ascii_lowercase

import msgspec

from app.load import recording_client as client
from app.load.report import check_target, whole_file
from app.load.synthetic import Recipe, draw_load, read_lengths
from app.load.trace import MOST_TOKENS, Load, read_trace
from config import ConfigError
from config.flags import Parser, as_command, whole_number
from config.installation import COMMAND

ABOUT = f"""\
Send a load to a live server (vLLM, or this one), and write when each request was sent, and when its first and
its last token came: what {COMMAND} calibrate makes a profile of (docs/fidelity.md, "From a real vLLM to
its understudy"). Prompts are random token ids, answers have exactly as many tokens as the load says.
With --proxy it keeps the exchanges of others instead: {COMMAND} record --proxy --help.
"""
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "send_s", "first_s", "last_s")
TOKEN_IDS = range(1000, 30000)
"""Of prompts to a server that does not tokenize: ids that are in most vocabularies, and special in none."""
WORDS = " ".join(one + other for one in ascii_lowercase for other in ascii_lowercase)
"""What a server is asked the ids of."""
TELL_EVERY_S = 2.0
ANSWER_S = 10.0


@as_command(client.RecordError)
def run(argv: Sequence[str]) -> int:
    """Exit status."""
    _record(_parser().parse_args(argv))
    return 0


def _parser() -> argparse.ArgumentParser:
    flags = Parser(prog=f"{COMMAND} record", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("--target", required=True, metavar="URL", help="the server, such as http://host:8000")
    add("--out", required=True, type=Path, metavar="FILE.csv[.gz]", help="file to write")
    add("--trace", type=Path, metavar="FILE", help="the load: a CSV file, see simulate")
    add("--rate", type=_positive, metavar="R", help="or: requests a second, Poisson")
    add("--seconds", type=_positive, default=60.0, metavar="S", help="for so long [60]")
    add("--input-tokens", default="1000", metavar="LENGTHS", help="of prompts, see simulate [1000]")
    add("--output-tokens", default="128", metavar="LENGTHS", help="of answers [128]")
    add("--in-flight", type=whole_number(1, 10000), metavar="N", help="requests under way at most [all]")
    add("--model", metavar="NAME", help="to ask for [the first that the server serves]")
    add("--api-key", metavar="KEY", help="of the server")
    add(
        "--longest",
        type=whole_number(2, MOST_TOKENS),
        default=4096,
        metavar="N",
        help="cuts drawn lengths [4096]",
    )
    add("--seed", type=whole_number(0), default=1, metavar="N", help="of load and prompts [1]")
    return flags


def _record(given: argparse.Namespace) -> None:
    check_target(given.out)
    target = client.read_target(given.target)
    load = _load(given)
    headers = {} if given.api_key is None else {"Authorization": f"Bearer {given.api_key}"}
    model = given.model or _first_model(target, headers)
    ids = _token_ids(target, headers, model)
    progress = _Progress()
    recording = client.RecordingClient(target, headers, given.in_flight, time.perf_counter, progress)
    gc.collect()
    gc.disable()  # a collection would make moments late
    try:
        measured = recording.run(Prompts(load, model, ids, given.seed))
    finally:
        gc.enable()
    with whole_file(given.out) as part:
        part.write_bytes(_packed(given.out, _as_csv(measured)))
    took_s = measured[-1].last_s
    late_ms = 1000 * max(it.send_s - it.arrival_s for it in measured)
    held = "" if given.in_flight is None else f"; --in-flight {given.in_flight} held back sends"
    print(
        f"{given.out}: {len(measured)} requests in {took_s:.0f} s; sent at most {late_ms:.1f} ms late{held}"
    )


def _load(given: argparse.Namespace) -> Load:
    if (given.trace is None) == (given.rate is None):
        raise ConfigError("record: either trace or rate must be given")
    if given.trace is not None:
        return read_trace(given.trace)
    lengths = []
    for name in ("input", "output"):
        text = getattr(given, f"{name}_tokens")
        try:
            lengths.append(read_lengths(text, name))
        except ValueError as error:
            raise ConfigError(f"{name}-tokens {text!r} {error}") from None
    recipe = Recipe(
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        rate=given.rate,
        seconds=given.seconds,
        seed=given.seed,
    )
    return draw_load(recipe, given.longest)


class Prompts:
    """The requests of a load: random prompts, of which those of a group begin alike."""

    def __init__(self, load: Load, model: str, ids: Sequence[int], seed: int) -> None:
        self._load = load
        self._token_ids = ids
        self._model = model
        self._seed = seed

    def __len__(self) -> int:
        return len(self._load)

    def wanted(self, number: int) -> client.Wanted:
        load = self._load
        count, output = load.input_tokens[number], load.output_tokens[number]
        prompt: list[int] = []
        if load.group and load.prefix_tokens[number]:
            prompt = self._ids(f"group {load.group[number]}", load.prefix_tokens[number])
        prompt += self._ids(f"request {number}", count - len(prompt))
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return client.Wanted(load.arrival_s[number], msgspec.json.encode(body), output)

    def _ids(self, of: str, count: int) -> list[int]:
        return Random(f"{self._seed}/{of}").choices(self._token_ids, k=count)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _first_model(target: client.Target, headers: dict[str, str]) -> str:
    status, body = _asked(target, headers, "GET", "/v1/models")
    if status != 200:
        raise client.RecordError(f"GET /v1/models: status {status}; does the server want an --api-key?")
    try:
        return msgspec.json.decode(body, type=_Models).data[0].id
    except (msgspec.MsgspecError, IndexError):
        raise client.RecordError("GET /v1/models: names no model; give --model") from None


def _token_ids(target: client.Target, headers: dict[str, str], model: str) -> Sequence[int]:
    """Ids that the model has, and that are not special."""
    question = msgspec.json.encode({"model": model, "prompt": WORDS, "add_special_tokens": False})
    status, body = _asked(target, headers, "POST", "/tokenize", question)
    if status != 200:
        return TOKEN_IDS
    try:
        return sorted(set(msgspec.json.decode(body, type=_Tokens).tokens)) or TOKEN_IDS
    except msgspec.MsgspecError:
        return TOKEN_IDS


def _asked(
    target: client.Target, headers: dict[str, str], method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    connection = HTTPConnection(target.host, target.port, timeout=ANSWER_S)
    try:
        given = {**headers, "Content-Type": "application/json"}
        connection.request(method, target.prefix + path, body, given)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException) as error:
        raise client.RecordError(f"{target.host}:{target.port}: {error}") from None
    finally:
        connection.close()


class _Progress:
    """A line now and then."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + TELL_EVERY_S

    def __call__(self, sent: int, under_way: int, of: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + TELL_EVERY_S
            print(f"{sent} of {of} requests sent, {under_way} under way", file=sys.stderr, flush=True)


def _as_csv(measured: Sequence[client.Measured]) -> str:
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(COLUMNS)
    for it in measured:
        moments = (f"{it.send_s:.6f}", f"{it.first_s:.6f}", f"{it.last_s:.6f}")
        rows.writerow((f"{it.arrival_s:.6f}", it.input_tokens, it.output_tokens, *moments))
    return file.getvalue()


def _packed(path: Path, text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return number
