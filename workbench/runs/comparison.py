"""`simulate --compare`: two runs, each with the options of a YAML file."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from app.extensions.console.compare import RunFigures, compare
from app.extensions.console.frames import Frame, Picture
from app.extensions.console.page import comparison_of
from config import ConfigError, UsageError
from config.yaml_file import parse_yaml
from workbench.load.output_files import atomic_file, check_output_paths, write_results
from workbench.load.progress import progress_bar
from workbench.load.tables import markdown
from workbench.runs.film import Film
from workbench.runs.job import Job, read_load
from workbench.runs.job_flags import json_file
from workbench.runs.job_spec import JobSpec
from workbench.runs.run_table import compared_figures
from workbench.runs.summary import RunSummary

SHARED_OPTIONS = ("compare", "html", "json", "requests", "plot", "sweep", "help")
"""Options that a file must not have, as they apply to the comparison."""

MakeJob = Callable[[Mapping[str, object]], Job]
"""Makes a job of the command line with further flags by name."""


def run_comparison(spec: JobSpec, paths: Sequence[Path], make_job: MakeJob) -> None:
    """Simulates two runs with one seed, and prints their differences."""
    _check_options(spec, paths)
    jobs = [_job_of_file(path, make_job) for path in paths]
    seeds = {job.plan.seed for job in jobs}
    if len(seeds) > 1:
        raise ConfigError(
            f"--compare requires the same seed for both runs, not {' and '.join(map(str, seeds))}"
        )
    names = [str(path) for path in paths]
    if paths[0].stem != paths[1].stem:
        names = [path.stem for path in paths]
    runs: dict[str, tuple[Picture, Iterator[Frame]]] = {}
    figures: list[RunFigures] = []
    summaries: dict[str, RunSummary] = {}
    for name, job in zip(names, jobs, strict=True):
        load = read_load(job)
        film = Film(load, job.plan, job.title(load))
        with progress_bar(sys.stderr, name, len(load), "requests") as progress:
            outcome, summary = job.run(load, progress, film.watch)
        queue_s, prefill_s = film.mean_waits_s(outcome)
        compared = compared_figures(summary, mean_queue_s=queue_s, mean_prefill_s=prefill_s)
        figures.append(RunFigures(name, compared))
        summaries[name] = summary
        runs[name] = (film.picture(outcome), film.frames(outcome))
    comparison = compare(*figures)
    lines = [comparison.sentence]
    lines += [f"{name}: {job.table_heading('')}" for name, job in zip(names, jobs, strict=True)]
    lines.append(markdown([("", *names, "difference"), *(row[:4] for row in comparison.rows)]))
    document = {
        "better": comparison.better,
        "sentence": comparison.sentence,
        "runs": summaries,
    }
    with write_results(spec.json, document, "\n".join(lines)) as files:
        if spec.html is not None:
            page = comparison_of(comparison, runs)
            files.enter_context(atomic_file(spec.html)).write_text(page, "utf-8")


def _check_options(spec: JobSpec, paths: Sequence[Path]) -> None:
    first, second = paths
    for name in ("sweep", "requests", "plot"):
        if getattr(spec, name) is not None:
            raise UsageError(f"--{name} applies to a single run and cannot be used with --compare")
    if first.resolve() == second.resolve():
        raise UsageError(f"--compare: {second} is specified twice")
    check_output_paths([spec.html, json_file(spec)], paths)


def _job_of_file(path: Path, make_job: MakeJob) -> Job:
    """Returns the job of a YAML file with options of the command.

    Raises:
        ConfigError: The file has a mistake; the message names the file.
    """
    document = parse_yaml(str(path))
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must map options to values")
    table: dict[str, object] = {}
    for key, value in document.items():
        name = str(key)
        if name in SHARED_OPTIONS:
            raise ConfigError(
                f"{path}: {name} applies to the whole comparison, not to a single run"
            )
        if value is None or isinstance(value, Mapping):
            raise ConfigError(f"{path}: {name} must be a value or a list of values")
        table[name] = value
    try:
        return make_job(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
