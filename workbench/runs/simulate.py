"""`understudy simulate`: simulates a load on engines, on virtual time."""

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from config.declaration import check_installed
from config.flags import as_command
from workbench.engine.steps import AUTO
from workbench.load.loads import LoadTrace
from workbench.load.output_files import atomic_file, write_results
from workbench.load.plotting import picture_file
from workbench.load.progress import progress_bar
from workbench.runs.job import Job, read_load
from workbench.runs.job_flags import make_job, with_profile, with_workload
from workbench.runs.job_reader import read_settings, read_table, read_words
from workbench.runs.job_spec import JobSpec
from workbench.runs.pictures import draw_curves, draw_run
from workbench.runs.run_table import run_table, write_requests
from workbench.runs.simulate_flags import default_seconds
from workbench.runs.summary import RunSummary, fleet_use
from workbench.runs.sweeps import (
    PREFILL_PODS,
    RATE,
    Point,
    Sweep,
    best_value,
    curve_table,
    sweep_verdict,
)
from workbench.runs.verdict import run_verdict
from workbench.runs.workers import map_jobs, worker_pool


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    written, settings = read_words(argv)
    spec = with_profile(with_workload(written))
    seconds = default_seconds(spec)

    def job_of_table(table: Mapping[str, object]) -> Job:
        run_spec = written.updated(read_table(table))
        run_settings = read_settings(run_spec)
        if seconds is not None and run_spec.seconds is None:
            run_spec = run_spec.changed(seconds=float(seconds))
        return make_job(with_workload(run_spec), run_settings)

    if spec.compare is not None:
        from workbench.runs.comparison import run_comparison  # imports the console

        run_comparison(spec, spec.compare, job_of_table)
        return 0
    if seconds is not None:
        spec = spec.changed(seconds=float(seconds))
    job = make_job(spec, settings)
    if seconds is not None:
        print(
            f"note: requests arrive for {seconds:,} s; --seconds or --num-requests sets another"
            " end",
            file=sys.stderr,
        )
    if spec.plot is not None:
        check_installed("fleet", "--plot")
    if spec.sweep is None:
        _run_once(job, spec)
    else:
        _run_sweep(job, spec, spec.sweep)
    if spec.profile == AUTO:
        print(f"profile auto: {job.plan.profile.checked}", file=sys.stderr)
    return 0


def _run_once(job: Job, spec: JobSpec) -> None:
    load = read_load(job)
    title = job.title(load)
    film = None
    watch = None
    html_path = spec.html
    if html_path is not None:
        from workbench.runs.film import Film  # imports the console

        film = Film(load, job.plan, title)
        watch = film.watch
    with progress_bar(sys.stderr, "simulated", len(load), "requests") as progress:
        outcome, summary = job.run(load, progress, watch, spec.processes)
    if job.plan.autoscaling is not None:
        constant = _best_constant_fleet(job, load, summary)
        fleet = fleet_use(outcome, job.judgement, constant)
        summary = msgspec.structs.replace(summary, fleet=fleet)
    verdict = run_verdict(summary, job.judgement)
    text = f"{verdict}\n{job.table_heading('')}\n{run_table(summary, job.judgement)}"
    with write_results(spec.json, summary, text) as files:
        if spec.requests is not None:
            write_requests(files.enter_context(atomic_file(spec.requests)), outcome)
        if film is not None and html_path is not None:
            page = film.page(outcome)
            files.enter_context(atomic_file(html_path)).write_text(page, "utf-8")
        if spec.plot is not None:
            path = files.enter_context(atomic_file(spec.plot))
            draw_run(outcome, summary, job.judgement, title=title, path=path)


def _best_constant_fleet(job: Job, load: LoadTrace, scaled: RunSummary) -> RunSummary | None:
    """Returns the figures of the smallest constant fleet that does as well as the autoscaled one.

    It meets the objectives or, without objectives, has as much goodput.
    """
    assert job.plan.autoscaling is not None
    if not (job.judgement.objectives or scaled.goodput):
        return None
    max_pods = job.plan.autoscaling.policy.max_pods
    runs: dict[int, RunSummary] = {}

    def is_good_enough(pods: int) -> bool:
        plan = replace(job.plan, pods=pods, autoscaling=None)
        _, summary = replace(job, plan=plan).run(load)
        runs[pods] = summary
        progress(len(runs))
        is_met = job.judgement.is_met(summary)
        if is_met is not None:
            return is_met
        if not summary.goodput or not scaled.goodput:
            return False
        return summary.goodput.good >= scaled.goodput.good

    with progress_bar(sys.stderr, "compared", max_pods.bit_length(), "fleets") as progress:
        index = bisect_left(range(1, max_pods + 1), True, key=is_good_enough)
    return runs.get(1 + index)


def _run_sweep(job: Job, spec: JobSpec, sweep: Sweep) -> None:
    values = sweep.values
    if sweep.name == PREFILL_PODS:
        values = (0.0, *values)  # 0 prefill pods stand for as many ordinary ones
    jobs = [job.with_value(sweep.name, value) for value in values]
    load = None if sweep.name == RATE else read_load(jobs[0])
    points: list[Point] = []
    with (
        worker_pool(min(spec.processes, len(jobs))) as pool,
        progress_bar(sys.stderr, f"swept {sweep.name}", len(jobs), "points") as progress,
    ):
        summaries = map_jobs(pool, partial(_simulate, load=load), jobs)
        for value, summary in zip(values, summaries, strict=True):
            meets_slo = job.judgement.is_met(summary)
            points.append(Point(value=value, meets_slo=meets_slo, summary=summary))
            progress(len(points))
    word, best = best_value(sweep.name, points, spec.slo)
    heading = job.table_heading(sweep.name)
    verdict = sweep_verdict(sweep.name, points, spec.slo)
    text = f"{verdict}\n{heading}\n{curve_table(sweep.name, points, spec.slo)}"
    document = {"sweep": sweep.name, word: best, "points": points}
    with write_results(spec.json, document, text) as files:
        if spec.plot is not None:
            path = files.enter_context(atomic_file(spec.plot))
            if job.profile_name == AUTO:
                profile = job.plan.profile
                heading = heading.replace(AUTO, f"{profile.model}, on {profile.device}", 1)
            with picture_file(path, heading) as panels:
                draw_curves(panels, sweep.name, points, spec.slo)


def _simulate(job: Job, load: LoadTrace | None) -> RunSummary:
    """Simulates a job, in this process or in a worker."""
    if load is None:
        load = job.load()
    _, summary = job.run(load)
    return summary
