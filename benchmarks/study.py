"""Studies of fleets whose load is known: what `study take` and `study compare` tell of them.

    python -m benchmarks.study stand_ins                 # ten minutes: four stand-ins, and a real Prometheus
    python -m benchmarks.study engine --url http://127.0.0.1:8000   # a real engine, as `make llm` starts it
    python -m benchmarks.study large                     # 24 h of 100 pods, from a made-up Prometheus

`stand_ins` sends two classes of prompts, of which 40% is a shared prefix, at a rate that doubles and
falls, and prints the errors of the study against what was sent, and against Prometheus' increase().
`engine` measures a server by its /metrics under one load, calibrates, and predicts another load,
three times.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import yaml

from benchmarks.report import show
from benchmarks.servers import free_port

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "app")
PROFILE = "qwen3-14b-h100"
PODS = 4
SCRAPE_S = 15
THREADS = 256
WAIT_S = 60.0
CLASSES = ((0.5, 1000, 60), (0.5, 300, 180))
ENGINE_CLASSES = ((0.5, 96, 24), (0.5, 32, 48))
OTHER_CLASSES = ((0.7, 64, 32), (0.3, 160, 16))
"""Shares of requests, with tokens of prompts and answers, which vary by a fifth."""
PREFIX_SHARE = 0.4
BLOCK = 16


@dataclass(frozen=True)
class Phase:
    """A rate for a time."""

    seconds: float
    rate: float


@dataclass
class Truth:
    """What was sent, and what came back."""

    sent_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    failures: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def send(
    ports: Sequence[int],
    phases: Sequence[Phase],
    *,
    classes: Sequence[tuple[float, int, int]] = CLASSES,
    prefix_share: float = PREFIX_SHARE,
    seed: int = 1,
    model: str = "",
    max_id: int = 1000,
) -> Truth:
    """Sends the load, each pod in turn, and waits for the last answer."""
    rng = random.Random(seed)
    truth = Truth()
    begin = time.time()
    with ThreadPoolExecutor(THREADS) as pool:
        at_s = 0.0
        number = 0
        for phase in phases:
            end_s = at_s + phase.seconds
            next_s = at_s + rng.expovariate(phase.rate)
            while next_s < end_s:
                _, tokens, answer_tokens = rng.choices(classes, [each[0] for each in classes])[0]
                length = round(tokens * rng.uniform(0.8, 1.2))
                prefix = round(tokens * prefix_share / BLOCK) * BLOCK
                prompt = [10 + index % 50 for index in range(prefix)]
                prompt += [rng.randrange(100, max_id) for _ in range(length - prefix)]
                answer = max(2, round(answer_tokens * rng.uniform(0.8, 1.2)))
                body = {"prompt": prompt, "max_tokens": answer, "ignore_eos": True}
                if model:
                    body["model"] = model
                time.sleep(max(0.0, begin + next_s - time.time()))
                pool.submit(_request, ports[number % len(ports)], body, truth)
                number += 1
                next_s += rng.expovariate(phase.rate)
            at_s = end_s
        time.sleep(max(0.0, begin + at_s - time.time()))
    return truth


def _request(port: int, body: dict[str, object], truth: Truth) -> None:
    sent_s = time.time()
    try:
        connection = HTTPConnection(HOST, port, timeout=120)
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        usage = answer["usage"]
    except (OSError, HTTPException, ValueError, KeyError) as error:
        print(f"failed: {error!r}", file=sys.stderr)
        truth.failures += 1
        return
    details = usage.get("prompt_tokens_details") or {}
    with truth.lock:
        truth.sent_s.append(sent_s)
        truth.input_tokens.append(usage["prompt_tokens"])
        truth.output_tokens.append(usage["completion_tokens"])
        truth.cached_tokens += details.get("cached_tokens") or 0


def get(port: int, path: str) -> bytes:
    """The body of an answer."""
    connection = HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != 200:
        raise OSError(f"{path}: status {response.status}")
    return body


def wait_for(port: int, path: str) -> None:
    """Waits until a server answers."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            get(port, path)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@contextmanager
def process(words: Sequence[str], log: Path) -> Iterator[None]:
    """A process until the end of the block."""
    with log.open("wb") as file:
        child = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file)
        try:
            yield
        finally:
            child.terminate()
            child.wait(20)


@contextmanager
def stand_ins(folder: Path, count: int, profile: str = PROFILE) -> Iterator[list[int]]:
    """Stand-ins with the steps of a profile."""
    with ExitStack() as stack:
        ports = []
        for number in range(count):
            port = free_port()
            words = [
                *COMMAND,
                "run",
                "--port",
                str(port),
                "--timing",
                "steps",
                "--profile",
                profile,
            ]
            words += ["--force-dummy-tokenizer", "--enable-prompt-tokens-details"]
            stack.enter_context(process(words, folder / f"pod{number}.log"))
            ports.append(port)
        for port in ports:
            wait_for(port, "/health")
        yield ports


@contextmanager
def prometheus(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """A real Prometheus that scrapes the ports."""
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [
            {
                "job_name": "pods",
                "static_configs": [{"targets": [f"{HOST}:{port}" for port in ports]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("prometheus is not installed: apt-get install prometheus")
    port = free_port()
    words = [
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
    ]
    with process([*words, f"--web.listen-address={HOST}:{port}"], folder / "prometheus.log"):
        wait_for(port, "/-/ready")
        yield port


def query(port: int, expression: str, time_s: float) -> float:
    """The sum of the values of an instant query."""
    parameters = urllib.parse.urlencode({"query": expression, "time": f"{time_s:.3f}"})
    answer = json.loads(get(port, f"/api/v1/query?{parameters}"))
    return sum(float(each["value"][1]) for each in answer["data"]["result"])


def run_stand_ins(options: argparse.Namespace) -> None:
    """Four stand-ins, and a real Prometheus."""
    third = options.minutes * 60 / 3
    phases = [
        Phase(third, options.rate),
        Phase(third, 2 * options.rate),
        Phase(third, options.rate),
    ]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="study-"))
    folder.mkdir(parents=True, exist_ok=True)
    with stand_ins(folder, PODS) as ports, prometheus(folder, ports) as server:
        time.sleep(SCRAPE_S + 5)
        start_s = time.time()
        truth = send(ports, phases)
        time.sleep(SCRAPE_S + 5)
        end_s = int(time.time())
        range_s = int(end_s - start_s) + SCRAPE_S + 2
        words = [
            "study",
            "take",
            "--prometheus",
            f"http://{HOST}:{server}",
            "--range",
            f"{range_s}s",
        ]
        words += ["--step", f"{SCRAPE_S}s", "--window", "60s", "--out", str(folder / "study")]
        subprocess.run([*COMMAND, *words], cwd=ROOT, check=True)
        provenance = json.loads((folder / "study" / "provenance.json").read_text())
        begin = time_of(provenance["start"])
        last = time_of(provenance["end"])
        selected = f"[{last - begin:.0f}s]"
        increases = {
            name: query(server, f"sum(increase(vllm:{metric}{selected}))", last)
            for name, metric in (
                ("requests", "request_prompt_tokens_count"),
                ("prompt tokens", "request_prompt_tokens_sum"),
                ("answer tokens", "request_generation_tokens_sum"),
            )
        }
        subprocess.run(
            [*COMMAND, "study", "compare", str(folder / "study"), "--profile", PROFILE]
            + ["--plot", str(folder / "compare.png")],
            cwd=ROOT,
        )
        print_errors(folder / "study", truth, increases, phases, start_s)


def time_of(text: str) -> float:
    """Unix seconds of a time as a study writes it."""
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def print_errors(
    folder: Path, truth: Truth, increases: dict[str, float], phases: Sequence[Phase], start_s: float
) -> None:
    """Prints a table with the truth, the study, and the errors."""
    windows = yaml.safe_load((folder / "workload.yaml").read_text())["windows"]
    requests = sum(window["requests"] for window in windows)
    arrived = sum(sum(window["arrivals"]) for window in windows)
    inputs = sum(window["requests"] * window["input_tokens"]["mean"] for window in windows)
    outputs = sum(window["requests"] * window["output_tokens"]["mean"] for window in windows)
    cached = sum(
        window["requests"] * window["input_tokens"]["mean"] * window["cached_share"]
        for window in windows
    )
    true_inputs = statistics.fmean(truth.input_tokens)
    true_outputs = statistics.fmean(truth.output_tokens)
    share = truth.cached_tokens / sum(truth.input_tokens)
    count = len(truth.sent_s)
    rows = [
        ["quantity", "truth", "study", "error"],
        ["requests that arrived", f"{count}", f"{arrived:.1f}", f"{arrived / count - 1:+.2%}"],
        [
            "mean prompt",
            f"{true_inputs:.1f}",
            f"{inputs / requests:.1f}",
            _error(inputs / requests, true_inputs),
        ],
        [
            "mean answer",
            f"{true_outputs:.1f}",
            f"{outputs / requests:.1f}",
            _error(outputs / requests, true_outputs),
        ],
        [
            "cached share",
            f"{share:.2%}",
            f"{cached / inputs:.2%}",
            f"{100 * (cached / inputs - share):+.2f} points",
        ],
    ]
    at_s = start_s
    for number, phase in enumerate(phases, 1):
        inside = [
            w
            for w in windows
            if w["start"].timestamp() >= at_s and w["end"].timestamp() <= at_s + phase.seconds
        ]
        seconds = sum((w["end"] - w["start"]).total_seconds() for w in inside)
        rate = sum(sum(w["arrivals"]) for w in inside) / seconds
        spans = [(w["start"].timestamp(), w["end"].timestamp()) for w in inside]
        sent = sum(any(start <= sent_s < end for start, end in spans) for sent_s in truth.sent_s)
        rows.append(
            [
                f"rate in phase {number}",
                f"{sent / seconds:.3f}",
                f"{rate:.3f}",
                _error(rate, sent / seconds),
            ]
        )
        at_s += phase.seconds
    totals = {"requests": requests, "prompt tokens": inputs, "answer tokens": outputs}
    for name, value in increases.items():
        rows.append(
            [
                f"{name}, increase()",
                f"{value:.1f}",
                f"{totals[name]:.1f}",
                _error(totals[name], value),
            ]
        )
    show("A study of four stand-ins", rows[0], rows[1:])
    print(f"failed requests: {truth.failures}")


def _error(value: float, truth: float) -> str:
    return f"{value / truth - 1:+.2%}"


def run_engine(options: argparse.Namespace) -> None:
    """A real engine, seen only through its metrics: calibrated on one load, judged on another."""
    port = urllib.parse.urlsplit(options.url).port or 8000
    model = json.loads(get(port, "/v1/models"))["data"][0]["id"]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="study-"))
    folder.mkdir(parents=True, exist_ok=True)
    loads = (
        ("first", ENGINE_CLASSES, options.rate),
        ("second", OTHER_CLASSES, options.other_rate),
    )
    for name, classes, rate in loads:
        most = capacity(port, classes, model)
        print(f"{name} load: {rate:.2f} requests/s, {rate / most:.0%} of {most:.2f} requests/s")
    errors: dict[str, list[float]] = {
        "TTFT": [],
        "TPOT": [],
        "TTFT uncalibrated": [],
        "TPOT uncalibrated": [],
    }
    measured: dict[str, list[float]] = {"TTFT": [], "TPOT": []}
    for run in range(1, options.runs + 1):
        studies: list[Path] = []
        for name, classes, rate in loads:
            study = folder / f"{name}-{run}"
            words = ["study", "take", "--metrics", options.url, "--for", f"{options.seconds:.0f}s"]
            words += [
                "--step",
                "5s",
                "--window",
                f"{max(15, options.seconds / 8):.0f}s",
                "--out",
                str(study),
            ]
            with ThreadPoolExecutor(1) as pool:
                taking = pool.submit(subprocess.run, [*COMMAND, *words], cwd=ROOT, check=True)
                time.sleep(2)
                send(
                    [port],
                    [Phase(options.seconds - 6, rate)],
                    classes=classes,
                    prefix_share=0.0,
                    seed=run * 10 + len(studies),
                    model=model,
                )
                taking.result()
            studies.append(study)
        first, second = studies
        subprocess.run(
            [*COMMAND, "study", "compare", str(first), "--calibrate", *options.flags], cwd=ROOT
        )
        subprocess.run(
            [*COMMAND, "study", "compare", str(second), "--profile", str(first / "profile.yaml")],
            cwd=ROOT,
        )
        calibrated = json.loads((second / "comparison.json").read_text())["parts"][-1]
        subprocess.run(
            [*COMMAND, "study", "compare", str(second), "--profile", options.start], cwd=ROOT
        )
        plain = json.loads((second / "comparison.json").read_text())["parts"][0]
        for row in calibrated["rows"]:
            if row["quantity"] in ("ttft_s", "tpot_s"):
                name = row["quantity"][:4].upper()
                errors[name].append(row["error"])
                measured[name].append(row["measured_s"])
        for row in plain["rows"]:
            if row["quantity"] in ("ttft_s", "tpot_s"):
                errors[f"{row['quantity'][:4].upper()} uncalibrated"].append(row["error"])
    rows = []
    for name in ("TTFT", "TPOT"):
        values = measured[name]
        spread = (max(values) - min(values)) / statistics.fmean(values)
        rows.append(
            [
                name,
                f"{1000 * statistics.fmean(values):.1f} ms",
                f"{spread:.1%}",
                f"{statistics.fmean(errors[name]):+.1%}",
                ", ".join(f"{error:+.1%}" for error in errors[name]),
                f"{statistics.fmean(errors[f'{name} uncalibrated']):+.1%}",
            ]
        )
    head = ["mean of", "measured", "spread of runs", "error, mean", "each run", "not calibrated"]
    show("A real engine, calibrated on another load", head, rows)


def capacity(port: int, classes: Sequence[tuple[float, int, int]], model: str) -> float:
    """Returns the requests per second of a server that gets many requests at once."""
    begin = time.monotonic()
    truth = send([port], [Phase(0.1, 500.0)], classes=classes, prefix_share=0.0, model=model)
    return len(truth.sent_s) / (time.monotonic() - begin)


def run_large(options: argparse.Namespace) -> None:
    """24 h of 100 pods, from a made-up Prometheus."""
    folder = options.folder or Path(tempfile.mkdtemp(prefix="study-"))
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words = [sys.executable, "-m", "tests.workbench.study.made_up", str(port), str(options.pods)]
    with process(words, folder / "made-up.log"):
        wait_for(port, "/-/ready")
        start_s = time.monotonic()
        words = [
            "study",
            "take",
            "--prometheus",
            f"http://{HOST}:{port}",
            "--end",
            "2026-01-02T00:00:00Z",
        ]
        words += ["--selector", 'namespace="prod",model_name="m"', "--out", str(folder / "study")]
        subprocess.run([*COMMAND, *words], cwd=ROOT, check=True)
        wall_s = time.monotonic() - start_s
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = sum(path.stat().st_size for path in (folder / "study").iterdir())
    rows = [[f"{wall_s:.1f} s", f"{usage.ru_maxrss / 1024:.0f} MiB", f"{size / 1e6:.1f} MB"]]
    show(f"24 h of {options.pods} pods", ["time", "most memory", "folder"], rows)


def main() -> None:
    """Runs one of the studies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("stand_ins", "engine", "large"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--other-rate", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--start", default="smollm2-135m-cpu", help="profile without calibration")
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--flags", nargs="*", default=[])
    options = parser.parse_args()
    {"stand_ins": run_stand_ins, "engine": run_engine, "large": run_large}[options.study](options)


if __name__ == "__main__":
    main()
