"""`understudy study take`: measures a fleet, and writes the folder of a study."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gevent
import gevent.ssl

from config.declaration import ConfigError, UsageError
from config.files import read_text
from config.printable import one_line
from workbench.check.sources import CommandLine
from workbench.load.progress import Progress, progress_bar
from workbench.load.workload import Workload
from workbench.study.fleet import make_fleet, read_serve
from workbench.study.folder import (
    make_measured,
    make_provenance,
    make_workload,
    write_study,
)
from workbench.study.measurement import Measurement, shown_models
from workbench.study.prometheus import Api, Range, clean_selector, measure_range
from workbench.study.scrapes import PodPoller, measure_scrapes, read_files
from workbench.study.take_flags import make_parser

DEFAULT_STEP_S = 60.0
POLL_STEP_S = 15.0
MAX_SECRET_BYTES = 1 << 16
MAX_CERTIFICATE_BYTES = 4 << 20
SHORT_GAP_SHARE = 0.02
"""Share of the samples of pods that may be missing without a warning."""


def take(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status.

    Raises:
        ConfigError: The fleet cannot be measured.
    """
    options = make_parser().parse_args(argv)
    sources = [options.prometheus, options.metrics, options.scrapes]
    if sum(source is not None for source in sources) != 1:
        raise UsageError("study take requires one of --prometheus, --metrics, and --scrapes")
    lines = read_serve(options.serve)
    if options.prometheus is not None:
        measurement, source = _from_prometheus(options)
    elif options.metrics is not None:
        measurement, source = _from_pods(options)
    else:
        with progress_bar(sys.stderr, "read", len(options.scrapes), "files") as progress:
            pods = read_files(options.scrapes, progress)
        measurement = measure_scrapes(pods, options.window)
        source = {"source": "scrapes", "files": len(options.scrapes)}
    write(options.out, measurement, source, lines=lines, device=options.device)
    return 0


def write(
    folder: Path,
    measurement: Measurement,
    source: dict[str, object],
    *,
    lines: Sequence[CommandLine],
    device: str,
) -> None:
    """Writes a study, and prints a summary.

    Raises:
        ConfigError: The measurement is not sufficient, or has two models.
    """
    models = sorted({facts.model for facts in measurement.pods.values()} - {""})
    if len(models) > 1:
        raise ConfigError(
            f"the pods have {shown_models(models)}; a study has one, so leave out the pods of the"
            " others"
        )
    measurement.check()
    model = models[0] if models else ""
    fleet = make_fleet(measurement, model, lines=lines, device=device)
    warnings = [*measurement.warnings, *_warnings(measurement, [g.role for g in fleet.groups])]
    workload = make_workload(measurement, model)
    write_study(
        folder,
        workload=workload,
        fleet=fleet,
        measured=make_measured(measurement, model),
        provenance=make_provenance(measurement, source, warnings),
    )
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(_summary(folder, workload, measurement))


def _summary(folder: Path, workload: Workload, measurement: Measurement) -> str:
    requests = sum(window.requests for window in workload.windows)
    seconds = sum(window.seconds for window in workload.windows)
    arrivals = sum(window.rate_per_s * window.seconds for window in workload.windows)
    resets = sum(len(state.resets) for state in measurement.steps.pods.values())
    plural = "" if len(measurement.pods) == 1 else "s"
    return (
        f"{folder}: {one_line(workload.model or 'a model')} on {len(measurement.pods)} pod{plural},"
        f" {requests:,.0f} requests ended in {seconds / 60:,.1f} minutes"
        f" ({arrivals / seconds:.3g} arrived per second), {len(workload.windows)} windows,"
        f" {resets} restarts"
    )


def _warnings(measurement: Measurement, roles: Sequence[str]) -> list[str]:
    warnings = []
    states = measurement.steps.pods
    missing_s = sum(end - start for state in states.values() for start, end in state.gaps)
    total_s = sum(state.last.time_s - state.first_s for state in states.values())
    if missing_s > SHORT_GAP_SHARE * total_s:
        warnings.append(
            f"{missing_s / total_s:.0%} of the time has no samples; their counts are divided"
            " evenly over the gaps (provenance.json has them): use a longer --step"
        )
    if measurement.invalid_samples:
        warnings.append(
            f"{measurement.invalid_samples:,} samples were NaN, negative, infinite or huge, and"
            " were left out"
        )
    if not measurement.has("tpot_s"):
        warnings.append(
            "vllm:request_time_per_output_token_seconds is missing, so TPOT is not compared;"
            " vLLM has it since 0.11"
        )
    if not measurement.has("cache_queries"):
        warnings.append("no counters of the prefix cache, so no cached tokens are assumed")
    if any(roles):
        warnings.append("prefill and decode pods: requests are those of the decode pods")
    return warnings


def _from_pods(options: Namespace) -> tuple[Measurement, dict[str, object]]:
    step_s = options.step or POLL_STEP_S
    if options.seconds < 2 * step_s:
        raise UsageError("--for must be at least two times --step")
    poller = PodPoller(options.metrics, now=time.time, sleep=gevent.sleep)
    steps = max(1, round(options.seconds / step_s))
    with progress_bar(sys.stderr, "scraped", steps, "times") as progress:
        pods = poller.run(options.seconds, step_s, progress)
    measurement = measure_scrapes(pods, options.window)
    for name, version in poller.versions().items():
        if name in measurement.pods:
            measurement.pods[name].version = version
    for name, reason in poller.failures.items():
        measurement.warnings.append(f"{name} did not always answer: {reason}")
    return measurement, {"source": "pods", "urls": list(poller.names)}


def _from_prometheus(options: Namespace) -> tuple[Measurement, dict[str, object]]:
    step_s = options.step or DEFAULT_STEP_S
    end_s = options.end or time.time()
    end_s = end_s // step_s * step_s if step_s >= 1 else round(end_s, 3)
    wanted = Range(
        selector=clean_selector(options.selector),
        start_s=round(end_s - max(2, round(options.range_s / step_s)) * step_s, 3),
        end_s=end_s,
        step_s=step_s,
        window_s=options.window,
        group_label=options.group_label,
    )
    api = Api(
        options.prometheus,
        authorization=_authorization(options),
        tls=_tls(options.ca_file),
        timeout_s=options.timeout,
        sleep=gevent.sleep,
    )
    with progress_bar(sys.stderr, "read", 100, "% of the queries") as report:
        measurement = measure_range(api, wanted, partial(_report, report))
    return measurement, {
        "source": "prometheus",
        "url": api.url,
        "selector": wanted.selector,
        "queries": api.queries,
    }


def _report(progress: Progress, done: int, total: int) -> None:
    progress(100 * done // total)


def _authorization(options: Namespace) -> str:
    if options.bearer_token_file is not None and options.basic_auth_file is not None:
        raise UsageError("--bearer-token-file and --basic-auth-file cannot be used together")
    if options.bearer_token_file is not None:
        return f"Bearer {_secret(options.bearer_token_file)}"
    if options.basic_auth_file is not None:
        secret = _secret(options.basic_auth_file)
        if ":" not in secret:
            raise UsageError("--basic-auth-file must contain USER:PASSWORD")
        return f"Basic {b64encode(secret.encode()).decode()}"
    return ""


def _secret(path: Path) -> str:
    try:
        secret = read_text(path, MAX_SECRET_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} must be a text") from None
    if not secret or not secret.isascii() or not secret.isprintable():
        raise ConfigError(f"{path} must contain one line of ASCII characters")
    return secret


def _tls(path: Path | None) -> gevent.ssl.SSLContext | None:
    if path is None:
        return None
    try:
        return gevent.ssl.create_default_context(cadata=read_text(path, MAX_CERTIFICATE_BYTES))
    except OSError as error:
        raise ConfigError(f"--ca-file {path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"--ca-file {path} must contain certificates in PEM format") from None
