"""A decision about a fleet, checked: a pod is removed for real, and the load is replayed.

    python -m benchmarks.decide                  # a quarter of an hour: four stand-ins, three, and four again
    python -m benchmarks.decide --minutes 2      # shorter, with larger errors

The stand-ins are slower than a GPU by a factor, so that delays of a busy machine matter less.

1. Four stand-ins get a load, and `study take` and `study compare` measure them.
2. `plan --what-if pods=3` predicts three stand-ins; three get the load, and are measured.
3. `study replay` sends the study to four fresh stand-ins, and `study take` measures them again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import yaml

from app.core.engine.profile import read_profile
from benchmarks.report import show
from benchmarks.study import COMMAND, HOST, PODS, PROFILE, ROOT, Phase, send, stand_ins
from workbench.study.calibration import scaled_profile

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "queue_s": "queue", "e2e_s": "E2E"}
STEP_S = 5
MARGIN_S = 8.0
"""Seconds for which metrics are asked beyond the load."""


def run(*words: str) -> None:
    """Runs a command of Understudy."""
    subprocess.run([*COMMAND, *words], cwd=ROOT, check=False)


def slower_profile(folder: Path, factor: float) -> str:
    """Writes a profile whose steps take `factor` times as long, and returns its path."""
    profile = scaled_profile(read_profile(PROFILE), (factor, 1.0, factor))
    path = folder / "slower.yaml"
    path.write_text(yaml.safe_dump(msgspec.to_builtins(profile)))
    return str(path)


def measured(
    folder: Path,
    name: str,
    count: int,
    *,
    seconds: float,
    profile: str,
    load: Callable[[Sequence[int]], object],
) -> Path:
    """Takes a study of `count` fresh stand-ins, which get a load of these seconds."""
    place = folder / name
    place.mkdir()
    with stand_ins(place, count, profile) as ports, ThreadPoolExecutor(1) as pool:
        words = ["study", "take", "--metrics", *(f"http://{HOST}:{port}" for port in ports)]
        words += [
            "--for",
            f"{seconds + MARGIN_S:.0f}s",
            "--step",
            f"{STEP_S}s",
            "--window",
            f"{seconds / 8:.0f}s",
        ]
        taking = pool.submit(run, *words, "--out", str(place / "study"))
        time.sleep(3)
        load(ports)
        taking.result()
    return place / "study"


def means(study: Path) -> dict[str, float]:
    """The measured mean of each latency, in seconds."""
    windows = json.loads((study / "measured.json").read_text())["windows"]
    found = {}
    for name in NAMES:
        parts = [window["latencies"][name] for window in windows if name in window["latencies"]]
        found[name] = sum(part["sum"] for part in parts) / sum(part["count"] for part in parts)
    return found


def totals(study: Path) -> dict[str, float]:
    """Requests, rate while there was load, mean lengths and cached share of a study."""
    windows = yaml.safe_load((study / "workload.yaml").read_text())["windows"]
    arrivals = [count for window in windows for count in window["arrivals"]]
    requests = sum(window["requests"] for window in windows)
    inputs = sum(window["requests"] * window["input_tokens"]["mean"] for window in windows)
    outputs = sum(window["requests"] * window["output_tokens"]["mean"] for window in windows)
    cached = sum(w["requests"] * w["input_tokens"]["mean"] * w["cached_share"] for w in windows)
    return {
        "requests": requests,
        "busiest minute": max(sum(arrivals[at : at + 60 // STEP_S]) for at in range(len(arrivals))),
        "mean prompt": inputs / requests,
        "mean answer": outputs / requests,
        "cached share": cached / inputs,
    }


def compare(title: str, first: Mapping[str, float], second: Mapping[str, float]) -> None:
    """Prints two studies beside each other."""
    rows = []
    for name, value in first.items():
        rows.append(
            [name, f"{value:.4g}", f"{second[name]:.4g}", f"{second[name] / value - 1:+.1%}"]
        )
    show(title, ["", "first", "second", "difference"], rows)


def main() -> None:
    """Runs the three steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--slower", type=float, default=4.0)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="decide-"))
    folder.mkdir(parents=True, exist_ok=True)
    seconds = 60 * options.minutes
    phases = [Phase(seconds / 3, rate * options.rate) for rate in (1, 2, 1)]

    profile = slower_profile(folder, options.slower)

    def take(name: str, count: int, load: Callable[[Sequence[int]], object]) -> Path:
        return measured(folder, name, count, seconds=seconds, profile=profile, load=load)

    first = take("four", PODS, lambda ports: send(ports, phases))
    run("study", "compare", str(first), "--profile", profile, "--policy", "round-robin")
    answer = folder / "answer.json"
    report = folder / "report.html"
    words = [
        "plan",
        "--study",
        str(first),
        "--accept-study",
        "--json",
        str(answer),
        "--html",
        str(report),
    ]
    run(*words, "--what-if", "pods=3", "pods=2", "rate x2")
    predicted = json.loads(answer.read_text())
    row = next(row for row in predicted["rows"] if row["name"] == "pods=3")
    stated = {row["quantity"]: row["window_error"] for row in compared(first)}

    second = take("three", PODS - 1, lambda ports: send(ports, phases))
    truth = means(second)
    rows = []
    for effect in row["effects"]:
        name = effect["quantity"]
        error = effect["mean_s"] / truth[name] - 1
        verdict = "yes" if abs(error) <= stated[name] else "no"
        figures = [effect["simulated_today_s"], effect["mean_s"], truth[name]]
        cells = [f"{1000 * value:.2f} ms" for value in figures]
        shares = [f"{error:+.1%}", f"{stated[name]:.1%}", f"{predicted['errors'][name]:.1%}"]
        rows.append([NAMES[name], f"{1000 * means(first)[name]:.2f} ms", *cells, *shares, verdict])
    head = [
        "",
        "4 pods",
        "simulated",
        "predicted for 3",
        "3 pods",
        "error",
        "stated",
        "used by plan",
        "within stated",
    ]
    show("One pod removed", head, rows)

    def replay(ports: Sequence[int]) -> None:
        urls = [f"http://{HOST}:{port}" for port in ports]
        run("study", "replay", str(first), "--url", *urls, "--out", str(folder / "replay.jsonl"))

    third = take("replayed", PODS, replay)
    compare("A replay of the first study", totals(first), totals(third))
    compare("Mean latencies of the replay, in seconds", means(first), means(third))
    print(f"report: {report}")


def compared(study: Path) -> list[dict[str, float]]:
    """The rows of the comparison of a study."""
    rows: list[dict[str, float]] = json.loads((study / "comparison.json").read_text())["parts"][-1][
        "rows"
    ]
    return rows


if __name__ == "__main__":
    main()
