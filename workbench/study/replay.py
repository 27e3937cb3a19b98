"""`understudy study replay`: sends the workload of a study to live servers."""

from __future__ import annotations

import gc
import sys
import time
from argparse import Namespace
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import SystemRandom

from app.shared.statistics import mean_and_quantiles
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, number_of, whole_number
from workbench.load.loads import MAX_TOKENS, LoadTrace
from workbench.load.output_files import atomic_file, check_output_paths
from workbench.load.progress import progress_bar
from workbench.load.tables import markdown, milliseconds
from workbench.load.workload import draw_workload
from workbench.runs.exports import aiperf_line
from workbench.runs.record import LiveServer, plan_requests, read_target
from workbench.runs.recording_client import (
    FailedRequest,
    PlannedRequest,
    RecordedRequest,
    RecordError,
    RecordingClient,
)
from workbench.runs.tool_requests import ToolRequest
from workbench.study.folder import Study, read_study
from workbench.study.quantities import E2E, TPOT, TTFT
from workbench.study.simulated import mean_of
from workbench.study.window_comparison import NAMES

ABOUT = """\
Send the workload of a study to live servers (docs/decide.md). Prompts are random tokens, with the
lengths, the arrivals and the shared prefix of the study. Answers have exactly the drawn lengths.
"""
MAX_SPEED = 10_000.0
MAX_SEED = 1 << 31
MAX_URLS = 1000
MAX_ERRORS = 5
"""Most kinds of failures that are printed."""


def make_parser() -> FlagParser:
    """Makes the parser."""
    flags = FlagParser(
        prog=f"{COMMAND} study replay",
        usage=f"{COMMAND} study replay FOLDER --url URL [URL ...] [flags]",
        description=ABOUT,
        allow_abbrev=False,
    )
    flags.examples = (
        f"{COMMAND} study replay prod --url http://localhost:8000 --speed 2 --out run.jsonl",
    )
    add = flags.add_argument
    add("folder", type=Path, metavar="FOLDER", help="study to replay")
    add(
        "--url",
        required=True,
        nargs="+",
        metavar="URL",
        help="gateway or server, such as http://host:8000; several get the requests in turn",
    )
    add(
        "--speed",
        type=number_of(0, MAX_SPEED),
        default=1.0,
        metavar="FACTOR",
        help="factor of the request rate; the replay takes that part of the time [1]",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE.jsonl",
        help=f"write a line for each request, in AIPerf's format, which {COMMAND} judge reads",
    )
    add("--model", metavar="NAME", help="model of the requests [that of the study, or the first]")
    add("--api-key", metavar="KEY", help="API key of the servers")
    add(
        "--in-flight",
        type=whole_number(1, 10_000),
        metavar="N",
        help="maximum number of requests in flight [no limit]",
    )
    add(
        "--seed",
        type=whole_number(0, MAX_SEED),
        metavar="N",
        help="seed of lengths, times and prompts; with the seed of an earlier replay, servers find"
        " its prompts in their caches [a new one]",
    )
    return flags


def replay(argv: Sequence[str]) -> int:
    """Runs the command; its exit status is 1 if a request failed.

    Raises:
        ConfigError: The study cannot be read, or a server cannot be reached.
    """
    options = make_parser().parse_args(argv)
    check_output_paths([options.out], [options.folder / "workload.yaml"])
    if len(options.url) > MAX_URLS:
        raise ConfigError(f"--url: at most {MAX_URLS} servers are allowed")
    study = read_study(options.folder)
    targets = [read_target(url) for url in options.url]
    headers = {}
    if options.api_key is not None:
        headers["Authorization"] = f"Bearer {options.api_key}"
    try:
        server = LiveServer(targets[0], headers)
        model, max_tokens = _model_of(server, study, options.model)
        token_ids = server.token_ids(model)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    seed = options.seed
    if seed is None:
        seed = SystemRandom().randrange(MAX_SEED)
    load = draw_workload(study.workload, str(options.folder), seed=seed, max_tokens=max_tokens)
    _change_speed(load, options.speed)
    run_id = f"replay-{seed}"

    def requests() -> Iterator[PlannedRequest]:
        for number, request in enumerate(plan_requests(load, model, token_ids, seed)):
            request.request_id = _request_id(run_id, number)
            yield request

    clock_offset_s = time.time() - time.perf_counter()
    with progress_bar(sys.stderr, "sent", len(load), "requests") as progress:
        client = RecordingClient(
            targets,
            headers,
            in_flight=options.in_flight,
            now=time.perf_counter,
            on_send=progress,
            on_error=_ignore_error,
        )
        recorded = _without_collections(client, requests())
    seconds = time.perf_counter() - client.start_s
    if options.out is not None:
        start_s = client.start_s + clock_offset_s
        lines = _export_lines(recorded, client.failed, start_s=start_s, run_id=run_id)
        with atomic_file(options.out) as path:
            path.write_bytes(b"".join(lines))
    print(_summary(options, study, recorded, client.failed, seconds=seconds, seed=seed))
    return int(bool(client.failed))


def _ignore_error(error: str) -> None:
    """Leaves failures to `RecordingClient.failed`."""


def _without_collections(
    client: RecordingClient, requests: Iterator[PlannedRequest]
) -> list[RecordedRequest]:
    """Runs the client without garbage collections, which would delay measured times."""
    gc.collect()
    gc.disable()
    try:
        return client.run(requests)
    finally:
        gc.enable()


def _model_of(server: LiveServer, study: Study, name: str | None) -> tuple[str, int]:
    """Returns the model of the requests, and the most tokens of a request."""
    models = {model.id: model for model in server.models()}
    if name is None:
        name = study.workload.model
        if name not in models:
            name = server.first_model()
    served = models.get(name)
    if served is None or not served.max_model_len:
        return name, MAX_TOKENS
    return name, max(2, min(MAX_TOKENS, served.max_model_len))


def _change_speed(load: LoadTrace, speed: float) -> None:
    load.arrival_s = array("d", [time_s / speed for time_s in load.arrival_s])


def _request_id(run_id: str, number: int) -> str:
    return f"{run_id}-{number}"


def _export_lines(
    recorded: Sequence[RecordedRequest],
    failed: Sequence[FailedRequest],
    *,
    start_s: float,
    run_id: str,
) -> Iterator[bytes]:
    """Yields lines in the format of AIPerf, in order of arrival; `start_s` is a Unix time."""
    requests: dict[int, ToolRequest] = {}
    for request in recorded:
        requests[request.number] = ToolRequest(
            place="",
            send_s=start_s + request.send_s,
            planned_s=start_s + request.arrival_s,
            first_s=start_s + request.first_s,
            last_s=start_s + request.last_s,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            ids=(_request_id(run_id, request.number),),
        )
    for failure in failed:
        requests[failure.number] = ToolRequest(
            place="",
            send_s=start_s + failure.send_s,
            planned_s=start_s + failure.arrival_s,
            ids=(_request_id(run_id, failure.number),),
            error=failure.error,
        )
    for _, tool_request in sorted(requests.items()):
        yield aiperf_line(tool_request)


def _summary(
    options: Namespace,
    study: Study,
    recorded: Sequence[RecordedRequest],
    failed: Sequence[FailedRequest],
    *,
    seconds: float,
    seed: int,
) -> str:
    count = len(recorded) + len(failed)
    late_s = [request.send_s - request.arrival_s for request in recorded]
    lines = [
        f"sent: {count:,} requests in {seconds:.0f} s at {options.speed:g} times the measured rate,"
        f" at most {1000 * max(late_s, default=0.0):.1f} ms late, seed {seed}"
    ]
    input_tokens = sum(request.input_tokens for request in recorded)
    output_tokens = sum(request.output_tokens for request in recorded)
    cached = sum(request.cached_tokens for request in recorded)
    text = f"came back: {len(recorded):,} whole answers, {len(failed):,} failures"
    text += f"; {input_tokens:,} prompt tokens"
    if cached:
        text += f" ({cached / input_tokens:.1%} cached)"
    lines.append(f"{text}, {output_tokens:,} answer tokens")
    for error, times in Counter(failure.error for failure in failed).most_common(MAX_ERRORS):
        lines.append(f"failed {times:,} times: {error}")
    if recorded:
        lines.append(markdown(_latency_rows(study, recorded)))
    if options.out is not None:
        lines.append(f"{options.out}: a line for each request, for {COMMAND} judge {options.out}")
    return "\n".join(lines)


def _latency_rows(study: Study, recorded: Sequence[RecordedRequest]) -> list[list[str]]:
    measures: Mapping[str, Callable[[RecordedRequest], float | None]] = {
        TTFT: lambda request: request.first_s - request.send_s,
        TPOT: _pace,
        E2E: lambda request: request.last_s - request.send_s,
    }
    rows = [["at the client", "mean", "p50", "p90", "p99", "mean in the study"]]
    for name, measure in measures.items():
        values = [value for value in map(measure, recorded) if value is not None]
        if not values:
            continue
        windows = study.measured.windows
        mean_s = mean_of([each.latencies[name] for each in windows if name in each.latencies])
        figures = map(milliseconds, mean_and_quantiles(values))
        rows.append([NAMES[name], *figures, milliseconds(mean_s)])
    return rows


def _pace(request: RecordedRequest) -> float | None:
    if request.output_tokens < 2:
        return None
    return (request.last_s - request.first_s) / (request.output_tokens - 1)
