"""`understudy study compare`: simulates the fleet of a study, and compares it with the metrics."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import yaml

from config import ConfigError, UsageError
from config.declaration import COMMAND, check_installed
from config.flags import FlagParser, FlagTable, number_of, whole_number
from workbench.engine.steps import AUTO, Profile, read_profile
from workbench.load.output_files import (
    atomic_file,
    check_output_paths,
    check_picture_path,
    write_results,
)
from workbench.load.progress import Progress, ignore_progress, progress_bar
from workbench.load.study_folder import COMPARISON_FILE
from workbench.plan.change_flags import MAX_REQUESTS
from workbench.runs import simulate_flags
from workbench.runs.job import Job
from workbench.runs.job_flags import make_job, with_workload
from workbench.runs.job_reader import named_texts, read_settings, read_table
from workbench.runs.job_spec import JobSpec
from workbench.runs.simulate_flags import ENGINE_SWITCHES, MIN_ENGINE_LIMITS
from workbench.study.calibration import Fit, calibrate_study, scaled_start, start_name
from workbench.study.folder import FleetGroup, Study, read_study
from workbench.study.measurement import DECODE, PREFILL
from workbench.study.simulated import (
    Segment,
    SimulatedWindow,
    segments_of,
    simulate_study,
)
from workbench.study.window_comparison import (
    DEFAULT_LIMIT,
    Comparison,
    Part,
    compare_windows,
    table_of,
    verdict_of,
)

ABOUT = """\
Simulate the fleet of a study under its workload, and compare the latencies with those that were
measured (docs/study.md). Flags of simulate that describe an engine, such as --device, --model,
--profile or --max-num-seqs, complete or replace those in fleet.yaml.
"""
PROFILE_FILE = "profile.yaml"
MAX_CALIBRATED_REQUESTS = 30_000
"""Requests of a segment, from which on a part of the pods is simulated."""
MAX_EVALUATIONS = 40
LIMIT_FLAGS = frozenset(
    (
        *MIN_ENGINE_LIMITS,
        *ENGINE_SWITCHES,
        "pods",
        "policy",
        "seed",
        "kv-bytes-per-token",
        "vllm-version",
    )
)
"""Flags of simulate that go with any profile."""


def make_parser() -> FlagParser:
    """Makes the parser."""
    flags = FlagParser(
        prog=f"{COMMAND} study compare",
        usage=f"{COMMAND} study compare FOLDER [flags] [flags of simulate]",
        description=ABOUT,
        allow_abbrev=False,
    )
    flags.examples = (f"{COMMAND} study compare prod --profile qwen3-14b-h100",)
    add = flags.add_argument
    add("folder", type=Path, metavar="FOLDER", help="study to compare")
    add(
        "--calibrate",
        action="store_true",
        help="fit the profile to one half of the windows, and judge it on the other half",
    )
    add(
        "--limit",
        type=number_of(0, 100),
        default=DEFAULT_LIMIT,
        metavar="SHARE",
        help=f"largest error with which plan takes the study [{DEFAULT_LIMIT:g}]",
    )
    add(
        "--max-requests",
        type=whole_number(100),
        metavar="N",
        help="most requests to simulate; of larger fleets, a part of the pods gets its part of the"
        f" load [{MAX_REQUESTS:,}; {MAX_CALIBRATED_REQUESTS:,} with --calibrate]",
    )
    add("--plot", type=Path, metavar="FILE.png|FILE.svg", help="draw distributions and times")
    add("--json", type=Path, metavar="FILE|-", help="write the comparison as JSON, - for stdout")
    return flags


def compare(argv: Sequence[str]) -> int:
    """Runs the command; its exit status is 1 if an error is above the limit.

    Raises:
        ConfigError: The study cannot be read, or its fleet cannot be simulated.
    """
    parser = make_parser()
    options, words = parser.parse_known_args(argv)
    check_picture_path(options.plot)
    if options.plot is not None:
        check_installed("fleet", "--plot")
    json_path = None if options.json == Path("-") else options.json
    check_output_paths([options.plot, json_path])
    study = read_study(options.folder)
    engine = read_table(simulate_flags.make_parser().table_of(words))
    job, is_known = make_study_job(study, engine, calibrates=options.calibrate)
    for warning in _warnings(study):
        print(f"warning: {warning}", file=sys.stderr)
    segments = segments_of(study)
    command = f"{COMMAND} study compare {shlex.join(argv)}"
    if options.calibrate:
        comparison, simulated = _calibrate(options, study, job, segments, is_known=is_known)
    else:
        simulated = _simulate(options, study, job, segments)
        everything = range(len(study.measured.windows))
        part = compare_windows("all windows", study, simulated, everything)
        comparison = _comparison(part, [part], options.limit)
    comparison = msgspec.structs.replace(comparison, command=command, flags=engine.texts)
    word = f"Yes, within the limit of {options.limit:.0%}"
    next_step = f"next: {COMMAND} plan --study {shlex.quote(str(options.folder))}"
    if not comparison.within_limit:
        word = f"No, above the limit of {options.limit:.0%}"
        next_step = f"next: {COMMAND} study compare {shlex.join(argv)} --calibrate"
    tables = "\n\n".join(map(table_of, comparison.parts))
    text = f"{word}: {comparison.verdict}\n{tables}"
    if comparison.within_limit or not options.calibrate:
        text += f"\n{next_step}"
    with write_results(options.json, comparison, text) as files:
        path = files.enter_context(atomic_file(options.folder / COMPARISON_FILE))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(comparison)))
        if options.plot is not None:
            from workbench.study.picture import draw_comparison  # imports matplotlib

            path = files.enter_context(atomic_file(options.plot))
            draw_comparison(study, simulated, comparison.verdict, path)
    return int(not comparison.within_limit)


def make_study_job(
    study: Study, engine: JobSpec, *, calibrates: bool, has_measured_blocks: bool = True
) -> tuple[Job, bool]:
    """Returns the job of a study, and whether its profile was named.

    The fields that are written in `engine` replace flags of the fleet. `has_measured_blocks`: the
    KV cache has the measured number of blocks.

    Raises:
        ConfigError: The fleet cannot be simulated.
    """
    names_profile = engine.has("profile")
    is_auto = not names_profile and ("device" in fleet_flags(study) or engine.has("device"))
    spec = _fleet_spec(study, engine, is_auto=is_auto)
    if not has_measured_blocks:
        spec = spec.without("num_gpu_blocks")
    spec = spec.updated(engine)
    settings = read_settings(spec)
    for name in ("sweep", "compare", "autoscale", "html", "requests", "in_flight"):
        if getattr(spec, name) is not None:
            flag = name.replace("_", "-")
            raise UsageError(f"study compare: --{flag} cannot be used")
    spec = with_workload(spec)
    is_known = bool(names_profile or is_auto)
    if not is_known and not calibrates:
        raise UsageError(
            f"{study.folder}: the device of the pods is not known; add --device and --model, or"
            " --profile, or --calibrate"
        )
    if not is_known:
        spec = _with_length(spec.changed(profile=start_name(study)))
    job = make_job(spec, settings)
    if not is_known:
        job = replace(job, plan=replace(job.plan, profile=scaled_start(study, job.plan.profile)))
    return job, is_known


def fleet_flags(study: Study) -> FlagTable:
    """Returns the flags in fleet.yaml of the largest group of pods, with their long names."""
    return named_texts(max(study.fleet.groups, key=_size).flags)


def _fleet_spec(study: Study, engine: JobSpec, *, is_auto: bool) -> JobSpec:
    """Returns the job of fleet.yaml, without the flags that `engine` replaces.

    Raises:
        UsageError: A flag has a wrong value.
    """
    flags = fleet_flags(study)
    if not is_auto:  # a profile from a file has its own model, and limits can change
        flags = {name: value for name, value in flags.items() if name in LIMIT_FLAGS}
    kept = {name: value for name, value in flags.items() if name not in engine.texts}
    spec = JobSpec().changed(study=study.folder)
    if is_auto:
        spec = spec.changed(profile=AUTO)
    spec = spec.updated(read_table(kept))
    roles = {group.role: group for group in study.fleet.groups}
    if PREFILL in roles and DECODE in roles:
        spec = spec.changed(prefill_pods=roles[PREFILL].pods, decode_pods=roles[DECODE].pods)
    return spec


def _with_length(spec: JobSpec) -> JobSpec:
    """Returns a job whose requests fit the measured KV cache, which may be smaller."""
    assert spec.profile is not None
    limits = read_profile(spec.profile).engine
    blocks = spec.num_gpu_blocks or limits.num_gpu_blocks
    longest = (blocks - 1) * (spec.block_size or limits.block_size)
    if spec.max_model_len is None and (limits.max_model_len or 0) > longest:
        return spec.changed(max_model_len=longest)
    return spec


def _size(group: FleetGroup) -> int:
    return group.pods


def _warnings(study: Study) -> list[str]:
    groups = study.fleet.groups
    warnings = []
    if len([group for group in groups if not group.role]) > 1:
        warnings.append(
            f"the fleet has {len(groups)} groups of pods; all are simulated like the largest one"
        )
    if any(group.role for group in groups):
        warnings.append(
            "pods with roles: only TPOT and decode times are compared, as the other times of decode"
            " pods leave out the prefill"
        )
    return warnings


def _simulate(
    options: Namespace, study: Study, job: Job, segments: Sequence[Segment]
) -> list[SimulatedWindow]:
    total = len(study.measured.windows)
    with progress_bar(sys.stderr, "simulated", total, "windows") as progress:
        return simulate_study(
            study,
            job,
            segments=segments,
            max_requests=options.max_requests or MAX_REQUESTS,
            progress=progress,
        )


def _calibrate(
    options: Namespace, study: Study, job: Job, segments: Sequence[Segment], *, is_known: bool
) -> tuple[Comparison, list[SimulatedWindow]]:
    numbers = [
        number
        for number, window in enumerate(study.measured.windows)
        if any(each.count for each in window.latencies.values())
    ]
    if len(numbers) < 2:
        raise ConfigError("--calibrate: the study needs two windows in which requests ended")
    fitted_numbers = numbers[::2]
    judged_numbers = numbers[1::2]
    max_requests = options.max_requests or MAX_CALIBRATED_REQUESTS

    def run(profile: Profile, progress: Progress = ignore_progress) -> list[SimulatedWindow]:
        changed = replace(job, plan=replace(job.plan, profile=profile))
        return simulate_study(
            study, changed, segments=segments, max_requests=max_requests, progress=progress
        )

    start = job.plan.profile
    before = run(start)
    with progress_bar(sys.stderr, "fitted", MAX_EVALUATIONS, "simulations") as progress:
        fit = calibrate_study(study, start, run, numbers=fitted_numbers, progress=progress)
    after = run(fit.profile)
    name = "not calibrated" if is_known else "not calibrated (start for an unknown device)"
    parts = [
        compare_windows(f"{name}, the windows that judge", study, before, judged_numbers),
        compare_windows("calibrated, the windows that were fitted", study, after, fitted_numbers),
        compare_windows("calibrated, the windows that judge", study, after, judged_numbers),
    ]
    comparison = _comparison(parts[-1], parts, options.limit)
    comparison = msgspec.structs.replace(comparison, constants=fit.factors)
    _write_profile(study.folder / PROFILE_FILE, fit, comparison)
    return comparison, after


def _comparison(judged: Part, parts: list[Part], limit: float) -> Comparison:
    verdict, is_within, errors = verdict_of(judged, limit)
    return Comparison(
        verdict=verdict,
        within_limit=is_within,
        limit=limit,
        errors=errors,
        parts=parts,
        command="",
        flags={},
    )


def _write_profile(path: Path, fit: Fit, comparison: Comparison) -> None:
    """Writes the calibrated profile, for --profile of simulate and of a server."""
    factors = ", ".join(f"{name} {value:.3g}" for name, value in fit.factors.items())
    profile = msgspec.structs.replace(
        fit.profile,
        source=f"{fit.profile.source}; calibrated by study compare (factors: {factors})",
        checked=f"by the metrics of a fleet, windows that the fit never saw: {comparison.verdict}",
    )
    text = yaml.safe_dump(msgspec.to_builtins(profile), sort_keys=False, width=100)
    with atomic_file(path) as partial:
        partial.write_text(text, "utf-8")
    print(
        f"{path}: {fit.simulations} simulations; use it with simulate --profile {path}",
        file=sys.stderr,
    )
