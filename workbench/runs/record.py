"""`understudy record`: sends a load to a live server and records the times of each request."""

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from msgspec import Struct
from msgspec.json import encode

from app.shared.http_client import Target, exchange
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, as_command, number_of, whole_number
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.load.loads import MAX_TOKENS, LoadTrace
from workbench.load.output_files import atomic_file, check_output_paths, write_rows
from workbench.load.progress import progress_bar
from workbench.load.synthetic import Recipe, draw_load, lengths
from workbench.runs.recording_client import (
    PlannedRequest,
    RecordedRequest,
    RecordError,
    RecordingClient,
    completion,
)
from workbench.runs.traces import read_trace

ABOUT = f"""\
Send a load to a live server (vLLM or Understudy), and write the times at which each request was
sent and its first and last token arrived. {COMMAND} calibrate fits a profile to such files
(docs/profiles.md). Prompts are random token ids. Answers have exactly the tokens of the load. With
--proxy, the command records the exchanges of other clients instead: {COMMAND} record --proxy
--help.
"""
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "send_s", "first_s", "last_s")
TOKEN_IDS = range(1000, 30000)
"""Token ids for prompts to a server without /tokenize. Most vocabularies have them, and they are
special in none.
"""
WORDS = " ".join(first + second for first in ascii_lowercase for second in ascii_lowercase)
"""Text whose token ids are used for prompts."""
ANSWER_TIMEOUT_S = 10.0


@as_command(RecordError)
def run(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    options = make_parser().parse_args(argv)
    check_output_paths([options.out], [options.trace])
    target = read_target(options.target)
    load = _read_load(options)
    headers = {}
    if options.api_key is not None:
        headers["Authorization"] = f"Bearer {options.api_key}"
    server = LiveServer(target, headers)
    model = options.model or server.first_model()
    requests = plan_requests(load, model, server.token_ids(model), options.seed)
    gc.collect()
    gc.disable()  # a collection would delay measured times
    try:
        with progress_bar(sys.stderr, "sent", len(load), "requests") as progress:
            client = RecordingClient(
                target,
                headers,
                in_flight=options.in_flight,
                now=time.perf_counter,
                on_send=progress,
            )
            recorded = client.run(requests)
    finally:
        gc.enable()
    with atomic_file(options.out) as partial:
        write_rows(partial, COLUMNS, map(_row, recorded))
    max_late_ms = 1000 * max(request.send_s - request.arrival_s for request in recorded)
    text = f"{options.out}: {len(recorded)} requests in {recorded[-1].last_s:.0f} s;"
    text += f" sent at most {max_late_ms:.1f} ms late"
    if options.in_flight is not None:
        text += f"; --in-flight {options.in_flight} delayed requests"
    print(text)
    return 0


def _row(request: RecordedRequest) -> tuple[object, ...]:
    return (
        f"{request.arrival_s:.6f}",
        request.input_tokens,
        request.output_tokens,
        f"{request.send_s:.6f}",
        f"{request.first_s:.6f}",
        f"{request.last_s:.6f}",
    )


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser."""
    flags = FlagParser(prog=f"{COMMAND} record", description=ABOUT, allow_abbrev=False)
    flags.examples = (
        f"{COMMAND} record --target http://localhost:8000 --rate 2 --seconds 5 --out run.csv",
        f"{COMMAND} record --proxy --target http://localhost:8000 --out session.jsonl",
    )
    add = flags.add_argument
    add(
        "--target", required=True, metavar="URL", help="URL of the server, such as http://host:8000"
    )
    add("--out", required=True, type=Path, metavar="FILE.csv[.gz]", help="file to write")
    add("--trace", type=Path, metavar="FILE", help="file with the load, as for simulate")
    add(
        "--rate",
        type=number_of(0, 1e6),
        metavar="R",
        help="requests per second of a Poisson load, without --trace",
    )
    add(
        "--seconds",
        type=number_of(0, 1e6),
        default=60.0,
        metavar="S",
        help="duration of the Poisson load in seconds [60]",
    )
    add(
        "--input-tokens",
        type=lengths("input"),
        default="1000",
        metavar="LENGTHS",
        help="lengths of prompts, as for simulate [1000]",
    )
    add(
        "--output-tokens",
        type=lengths("output"),
        default="128",
        metavar="LENGTHS",
        help="lengths of answers, as for simulate [128]",
    )
    add(
        "--in-flight",
        type=whole_number(1, 10000),
        metavar="N",
        help="maximum number of requests in flight [no limit]",
    )
    add(
        "--model",
        metavar="NAME",
        help="model of the requests [the first model of the server]",
    )
    add("--api-key", metavar="KEY", help="API key of the server")
    add(
        "--longest",
        type=whole_number(2, MAX_TOKENS),
        default=4096,
        metavar="N",
        help="maximum tokens of a request with drawn lengths [4096]",
    )
    add(
        "--seed",
        type=whole_number(0),
        default=1,
        metavar="N",
        help="seed of the load and the prompts [1]",
    )
    return flags


def read_target(url: str) -> Target:
    """Returns the server at `url`.

    Raises:
        ConfigError: `url` is not a plain HTTP URL.
    """
    target = Target.from_url(url)
    if target.scheme != "http":
        raise ConfigError(f"target {url}: must be a URL without TLS, such as http://host:8000")
    return target


def _read_load(options: argparse.Namespace) -> LoadTrace:
    if (options.trace is None) == (options.rate is None):
        raise ConfigError("record: either --trace or --rate is required")
    if options.trace is None:
        recipe = Recipe(
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            rate=options.rate,
            seconds=options.seconds,
            seed=options.seed,
        )
        return draw_load(recipe, options.longest)
    load = read_trace(options.trace)
    if load.session:
        raise ConfigError(
            f"record: {options.trace} contains sessions, which only the simulate command supports"
        )
    return load


def plan_requests(
    load: LoadTrace, model: str, token_ids: Sequence[int], seed: int
) -> Iterator[PlannedRequest]:
    """Yields the requests of a load, with random prompts; prompts of one group share a prefix."""
    for number, output_tokens in enumerate(load.output_tokens):
        prompt: list[int] = []
        for node in load.path(number) if load.group else ():
            tokens = min(load.node_tokens, load.prefix_tokens[number] - len(prompt))
            prompt += Random(f"{seed}/group {node}").choices(token_ids, k=tokens)
        rng = Random(f"{seed}/request {number}")
        prompt += rng.choices(token_ids, k=load.input_tokens[number] - len(prompt))
        body = completion(model, prompt, output_tokens, min_tokens=output_tokens, temperature=0)
        yield PlannedRequest(load.arrival_s[number], body, output_tokens)


class ServedModel(Struct):
    """A model of /v1/models."""

    id: str
    max_model_len: int | None = None


class _Answer(Struct):
    """An answer of /v1/models or of /tokenize."""

    data: Sequence[ServedModel] = ()
    tokens: Sequence[int] = ()


class LiveServer(Struct):
    """The server before the load: its model and its vocabulary."""

    target: Target
    headers: dict[str, str]

    def models(self) -> Sequence[ServedModel]:
        """Returns the models. Raises RecordError if the server cannot be reached."""
        return self._request("GET", "/v1/models").data

    def first_model(self) -> str:
        """Returns the name of the first model. Raises RecordError if the server names none."""
        models = self.models()
        if not models:
            raise RecordError(
                "GET /v1/models returned no model; use --model, or --api-key if the server"
                " requires a key"
            )
        return models[0].id

    def token_ids(self, model: str) -> Sequence[int]:
        """Returns ids of the model's tokens."""
        body = encode({"model": model, "prompt": WORDS, "add_special_tokens": False})
        return sorted(set(self._request("POST", "/tokenize", body).tokens or TOKEN_IDS))

    def _request(self, method: str, path: str, body: bytes | None = None) -> _Answer:
        """Returns the server's answer; an empty one for an error or an unknown format."""
        address = self.target.address
        try:
            status, answer = exchange(
                address,
                method,
                self.target.prefix + path,
                body,
                timeout_s=ANSWER_TIMEOUT_S,
                headers=self.headers,
            )
            if status == 200:
                return decode_untrusted(answer, type=_Answer)
        except OSError as error:
            raise RecordError(f"{address}: {error}") from None
        except UntrustedDataError:
            pass
        return _Answer()
