"""`python -m app record`: sends a load to a live server and records the times of each request.

Each request is a greenlet that only stores bytes. All bytes found by one poll of the event loop get
the poll's time. Responses are parsed when the loop is idle. A burst of many streams, such as one
step of an engine, therefore delays no recorded time.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from string import ascii_lowercase

import gevent
from gevent.pool import Pool
from gevent.socket import wait
from msgspec import UNSET, MsgspecError, Struct
from msgspec.json import decode, encode

from app.lab.fidelity.traces import read_trace
from app.lab.load.loads import MOST_TOKENS, LoadTrace, Recipe, draw_load, lengths
from app.lab.load.report import check_targets, progress_of, whole_file, write_rows
from app.serving.http.client import COMPLETIONS, JSON, ROUTED_TO, HttpConnection, Target, exchange
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, as_command, number_of, whole_number

HEAD_END = b"\r\n\r\n"
DATA, DONE = b"data: ", b"[DONE]"
RECEIVE_BYTES = 1 << 18
PATIENCE_S = 300.0
"""Longest pause of a response in seconds."""
CONNECT_S = 10.0

Pieces = list[tuple[float, bytes]]
"""Received bytes and their times in seconds."""


class RecordError(Exception):
    """A failure of the server, in one line."""


class StreamedChoice(Struct):
    text: str | None = None


class PromptDetails(Struct):
    cached_tokens: int | None = None


class StreamedUsage(Struct):
    """Token counts in the last event of a stream."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Event(Struct):
    """An event of a stream, with the fields that are read."""

    choices: Sequence[StreamedChoice] = ()
    usage: StreamedUsage | None = None
    error: object = UNSET


class Wanted(Struct):
    """A request, due `arrival_s` seconds after the start.

    With 0 output tokens, any number is right.
    """

    arrival_s: float
    body: bytes
    output_tokens: int = 0


class Measured(Struct):
    """Result of a request; seconds since the start."""

    number: int
    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int
    text_s: float
    """Time of the first text; of the last token without any."""
    cached_tokens: int
    pod: str
    """Pod that a proxy chose; empty without a proxy."""


def completion(model: str, prompt: str | list[int], tokens: int, **more: object) -> bytes:
    """Returns the body of a request for a stream of `tokens` tokens, with their usage."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, **more, "ignore_eos": True}
    return encode({**body, "stream": True, "stream_options": {"include_usage": True}})


class RecordingClient:
    """Sends a load to a server, at most `in_flight` requests at a time."""

    def __init__(
        self,
        target: Target,
        headers: dict[str, str],
        in_flight: int | None,
        now: Callable[[], float],
        progress: Callable[[int], None],
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """`failed` receives the error of each failed request; without it the first failure ends the
        run.
        """
        self._target = target
        given = {"Host": target.address, "Connection": "close", **JSON, **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._running = Pool(in_flight)
        self._now, self._progress, self._failed = now, progress, failed
        self._start_s = self._woken_s = 0.0
        self._measured: list[Measured] = []

    def run(self, requests: Iterable[Wanted]) -> list[Measured]:
        """Sends requests in order of arrival.

        Raises RecordError, with the request's number, at a failure.
        """
        self._start_s = self._now()
        caller, loop = gevent.getcurrent(), gevent.get_hub().loop
        look = loop.check(ref=False, priority=loop.MAXPRI)
        look.start(self._look)
        try:
            for number, wanted in enumerate(requests):
                while (left_s := wanted.arrival_s - self._passed_s()) > 0:
                    gevent.sleep(left_s)
                self._running.spawn(self._measure, number, wanted, caller)
                self._progress(number + 1)
            self._running.join()
        finally:
            look.stop()
            look.close()
            self._running.kill()
        return sorted(self._measured, key=lambda it: it.number)

    def _look(self) -> None:
        self._woken_s = self._passed_s()

    def _passed_s(self) -> float:
        return self._now() - self._start_s

    def _measure(self, number: int, wanted: Wanted, caller: gevent.Greenlet) -> None:
        try:
            send_s, pieces = self._exchange(wanted)
            gevent.idle()
            self._measured.append(_measured(number, wanted, send_s, pieces))
        except (RecordError, OSError) as error:
            text = str(error) if isinstance(error, RecordError) else error.strerror or str(error)
            if self._failed is not None:
                self._failed(text)
            else:
                gevent.kill(caller, RecordError(f"request {number + 1}: {text}"))

    def _exchange(self, wanted: Wanted) -> tuple[float, Pieces]:
        """Returns the time of sending, and the pieces of the response, which ends with its
        connection.
        """
        pieces: Pieces = []
        with closing(HttpConnection(self._target.address, CONNECT_S)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise RecordError(f"cannot connect: {error.strerror or error}") from None
            head = f"POST {self._target.prefix}{COMPLETIONS} HTTP/1.1\r\n{self._headers}"
            request = f"{head}Content-Length: {len(wanted.body)}\r\n\r\n".encode() + wanted.body
            send_s = self._passed_s()
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the response so far has the reason
                connection.sock.sendall(request)
            readable = gevent.get_hub().loop.io(connection.sock.fileno(), 1)
            try:
                while True:
                    wait(readable, PATIENCE_S)
                    at_s = self._woken_s
                    data = connection.sock.recv(RECEIVE_BYTES)
                    if not data:
                        return send_s, pieces
                    pieces.append((at_s, data))
            finally:
                readable.close()


def _measured(number: int, wanted: Wanted, send_s: float, pieces: Pieces) -> Measured:
    """Reads a response. Raises RecordError for an error or a wrong number of output tokens."""
    head, _, body = b"".join(data for _, data in pieces).partition(HEAD_END)
    status, *headers = head.split(b"\r\n")
    if b" 200 " not in status + b" ":
        raise RecordError(f"{one_line(status) or 'no answer'}: {one_line(body)}")
    moments, text_s, usage = _read_stream(pieces)
    if wanted.output_tokens not in (0, usage.completion_tokens):
        raise RecordError(
            f"has {usage.completion_tokens} output tokens, not the {wanted.output_tokens} asked for"
            " with ignore_eos and min_tokens"
        )
    pods = (
        line.partition(b":")[2]
        for line in headers
        if line.lower().startswith(ROUTED_TO.encode() + b":")
    )
    cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens
    pod = next(pods, b"").strip().decode("latin-1")
    sizes = usage.prompt_tokens, usage.completion_tokens
    first_s, last_s = moments[0], moments[-1]
    text_s = last_s if text_s is None else text_s
    return Measured(
        number, wanted.arrival_s, send_s, first_s, last_s, *sizes, text_s, cached or 0, pod
    )


def _read_stream(pieces: Pieces) -> tuple[list[float], float | None, StreamedUsage]:
    """Returns the times of a whole stream's events and of its first text, and its token counts."""
    moments: list[float] = []
    text_s: float | None = None
    usage: StreamedUsage | None = None
    rest, lines = b"", list[tuple[float, bytes]]()
    for at_s, piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        lines += ((at_s, line) for line in whole)
    for at_s, line in lines:
        if not line.startswith(DATA):
            continue
        if (data := line.removeprefix(DATA).strip()) == DONE:
            break
        try:
            event = decode(data, type=Event)
        except MsgspecError as error:
            raise RecordError(f"an event of its stream cannot be read: {error}") from None
        if event.error is not UNSET:
            raise RecordError(f"its stream has an error: {one_line(data)}")
        if event.choices:
            moments.append(at_s)
        if text_s is None and any(choice.text for choice in event.choices):
            text_s = at_s
        usage = event.usage or usage
    else:
        raise RecordError("its stream broke off")
    if not moments or usage is None:
        raise RecordError("its stream has no tokens, or no usage")
    return moments, text_s, usage


def one_line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:200]


ABOUT = f"""\
Send a load to a live server (vLLM, or this one), and write when each request was sent, and when its first and
its last token came: what {COMMAND} calibrate makes a profile of (docs/fidelity.md, "From a real vLLM to
its understudy"). Prompts are random token ids, answers have exactly as many tokens as the load says.
With --proxy it keeps the exchanges of others instead: {COMMAND} record --proxy --help.
"""
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "send_s", "first_s", "last_s")
TOKEN_IDS = range(1000, 30000)
"""Token ids for prompts to a server without /tokenize:

in most vocabularies, and special in none.
"""
WORDS = " ".join(one + other for one in ascii_lowercase for other in ascii_lowercase)
ANSWER_S = 10.0


@as_command(RecordError)
def run(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    check_targets([given.out], [given.trace])
    target, load = read_target(given.target), _load(given)
    headers = {} if given.api_key is None else {"Authorization": f"Bearer {given.api_key}"}
    model, token_ids = _served(target, headers, given.model)
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
    add(
        "--output-tokens",
        type=lengths("output"),
        default="128",
        metavar="LENGTHS",
        help="of answers [128]",
    )
    add(
        "--in-flight",
        type=whole_number(1, 10000),
        metavar="N",
        help="requests under way at most [all]",
    )
    add("--model", metavar="NAME", help="to ask for [the first that the server serves]")
    add("--api-key", metavar="KEY", help="of the server")
    longest = whole_number(2, MOST_TOKENS)
    add("--longest", type=longest, default=4096, metavar="N", help="cuts drawn lengths [4096]")
    add("--seed", type=whole_number(0), default=1, metavar="N", help="of load and prompts [1]")
    return flags


def read_target(url: str) -> Target:
    """Returns the server at `url`. Raises ConfigError for anything but a plain HTTP URL."""
    target = Target.from_url(url)
    if target.scheme != "http":
        raise ConfigError(f"target {url}: must be like http://host:8000 (TLS is not measured)")
    return target


def _load(given: argparse.Namespace) -> LoadTrace:
    if (given.trace is None) == (given.rate is None):
        raise ConfigError("record: either trace or rate must be given")
    if given.trace is not None:
        load = read_trace(given.trace)
        if load.session:
            raise ConfigError(
                f"record: {given.trace} has sessions, and only simulate waits for answers"
            )
        return load
    names = ("input_tokens", "output_tokens", "rate", "seconds", "seed")
    return draw_load(Recipe(**{name: getattr(given, name) for name in names}), given.longest)


def prompts(load: LoadTrace, model: str, ids: Sequence[int], seed: int) -> Iterator[Wanted]:
    """Yields the requests of a load, with random prompts; prompts of one group share a prefix."""
    for number, output in enumerate(load.output_tokens):
        prompt: list[int] = []
        for node in load.path(number) if load.group else ():
            tokens = min(load.node_tokens, load.prefix_tokens[number] - len(prompt))
            prompt += Random(f"{seed}/group {node}").choices(ids, k=tokens)
        own = Random(f"{seed}/request {number}")
        prompt += own.choices(ids, k=load.input_tokens[number] - len(prompt))
        body = completion(model, prompt, output, min_tokens=output, temperature=0)
        yield Wanted(load.arrival_s[number], body, output)


class _Named(Struct):
    id: str


class _Answer(Struct):
    """An answer of /v1/models or of /tokenize."""

    data: Sequence[_Named] = ()
    tokens: Sequence[int] = ()


def _served(
    target: Target, headers: dict[str, str], model: str | None
) -> tuple[str, Sequence[int]]:
    """Returns the model to ask for and ids of its tokens."""
    if not model:
        if not (models := _ask(target, headers, "GET", "/v1/models").data):
            raise RecordError(
                "GET /v1/models: names no model; give --model, or the server's --api-key"
            )
        model = models[0].id
    question = encode({"model": model, "prompt": WORDS, "add_special_tokens": False})
    return model, sorted(
        set(_ask(target, headers, "POST", "/tokenize", question).tokens or TOKEN_IDS)
    )


def _ask(
    target: Target, headers: dict[str, str], method: str, path: str, body: bytes | None = None
) -> _Answer:
    """Returns the server's answer; an empty one for another status than 200, or another form."""
    try:
        status, answer = exchange(
            target.address, method, target.prefix + path, body, ANSWER_S, headers
        )
        return decode(answer, type=_Answer) if status == 200 else _Answer()
    except OSError as error:
        raise RecordError(f"{target.address}: {error}") from None
    except MsgspecError:
        return _Answer()
