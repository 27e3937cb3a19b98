"""Reads texts of /metrics: saved files, or servers that are asked at intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gevent.pool import Pool
from msgspec import Struct

from app.shared.http_client import Target
from config.declaration import ConfigError
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.check.watch.exposition import (
    MAX_BYTES,
    fetch_metrics,
    metrics_target,
    samples_of,
)
from workbench.load.progress import Progress
from workbench.study.measurement import Measurement, PodLabels, shown_models, sum_engines
from workbench.study.quantities import (
    CACHE_CONFIG,
    GAUGES,
    MAX_UNIX_S,
    MODEL,
    SERIES,
    Key,
    is_valid,
    key_of,
)

MAX_SCRAPES = 100_000
MAX_CONNECTIONS = 16
MAX_EDGES = 20_000
"""Most steps of a study of saved scrapes."""


class Scrape(Struct, frozen=True, kw_only=True):
    """The metrics of a pod at a time."""

    time_s: float
    values: dict[Key, float]
    models: tuple[str, ...]
    config: dict[str, str]
    invalid: int
    """Samples that no server of vLLM can have."""


def read_scrape(address: str, content: bytes, time_s: float) -> Scrape:
    """Reads a text of /metrics.

    Raises:
        ConfigError: The text is not in Prometheus' format, or has no metrics of vLLM.
    """
    samples = []
    models: dict[str, None] = {}
    config: dict[str, str] = {}
    invalid = 0
    for sample in samples_of(address, content):
        if sample.name == CACHE_CONFIG:
            config.update(sample.labels)
        if sample.name not in SERIES:
            continue
        if sample.labels.get(MODEL):
            models[sample.labels[MODEL]] = None
        key = key_of(sample.name, sample.labels)
        if key is None or not is_valid(sample.value):
            invalid += 1
            continue
        samples.append((key, float(sample.value)))
    if not samples:
        raise ConfigError(f"{address} has no metrics of vLLM")
    return Scrape(
        time_s=time_s,
        values=sum_engines(samples),
        models=tuple(models),
        config=config,
        invalid=invalid,
    )


def read_files(paths: Sequence[Path], progress: Progress) -> dict[str, list[Scrape]]:
    """Reads saved scrapes; a file's time of change is its time, and its folder names the pod.

    Raises:
        ConfigError: A file cannot be read, or two files of a pod have the same time.
    """
    if len(paths) > MAX_SCRAPES:
        raise ConfigError(f"--scrapes: more than {MAX_SCRAPES:,} files")
    has_folders = len({path.absolute().parent for path in paths}) > 1
    pods: dict[str, list[Scrape]] = {}
    for number, path in enumerate(paths, 1):
        try:
            content = read_whole(path, MAX_BYTES)
            time_s = path.stat().st_mtime
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if not 0 <= time_s <= MAX_UNIX_S:
            raise ConfigError(f"--scrapes: the time of change of {path} is not valid")
        name = path.absolute().parent.name if has_folders else "pod"
        pods.setdefault(name, []).append(read_scrape(str(path), content, time_s))
        progress(number)
    for name, scrapes in pods.items():
        scrapes.sort(key=_time)
        for earlier, later in zip(scrapes, scrapes[1:], strict=False):
            if later.time_s - earlier.time_s < 1e-3:
                raise ConfigError(
                    f"--scrapes: two files of {name} have the same time of change; keep the times"
                    " when you copy them (cp -p, tar)"
                )
    return pods


def _time(scrape: Scrape) -> float:
    return scrape.time_s


def measure_scrapes(
    pods: Mapping[str, Sequence[Scrape]], window_s: float | None = None
) -> Measurement:
    """Returns the measurement of scrapes; the pod with the most scrapes determines the steps.

    Raises:
        ConfigError: There are too few scrapes, or more than one model.
    """
    longest = max(pods.values(), key=len)
    times = {scrape.time_s for scrape in longest}
    times.add(min(scrapes[0].time_s for scrapes in pods.values()))
    times.add(max(scrapes[-1].time_s for scrapes in pods.values()))
    edges = sorted(times)
    if len(edges) > MAX_EDGES:
        raise ConfigError(f"--scrapes: more than {MAX_EDGES:,} times")
    measurement = Measurement(edges, window_s)
    for name, scrapes in pods.items():
        facts = measurement.pods[name] = PodLabels(name=name)
        for scrape in scrapes:
            measurement.add(name, scrape.time_s, scrape.values)
            measurement.invalid_samples += scrape.invalid
            facts.config = scrape.config or facts.config
            for model in scrape.models:
                if facts.model and facts.model != model:
                    raise ConfigError(f"{name} has {shown_models([facts.model, model])}")
                facts.model = model
        _add_levels(measurement, scrapes)
    return measurement


def _add_levels(measurement: Measurement, scrapes: Sequence[Scrape]) -> None:
    times = [scrape.time_s for scrape in scrapes]
    max_age_s = 2.5 * measurement.step_s
    gauges = {Key(name) for name in GAUGES}
    for index, edge in enumerate(measurement.edges):
        position = bisect_right(times, edge + 1e-6) - 1
        if position >= 0 and edge - times[position] <= max_age_s:
            values = scrapes[position].values
            measurement.levels.add(index, {key: values[key] for key in gauges & values.keys()})


class PodPoller:
    """Asks servers for their metrics at intervals."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        timeout_s: float = 10.0,
    ) -> None:
        """`now` returns Unix seconds.

        Raises:
            ConfigError: A URL is not valid.
        """
        self._targets = {_pod_name(target): target for target in map(metrics_target, urls)}
        self._now = now
        self._sleep = sleep
        self._timeout_s = timeout_s
        self.failures: dict[str, str] = {}
        """Last failure by pod."""

    @property
    def names(self) -> list[str]:
        """Names of the pods."""
        return list(self._targets)

    def run(self, seconds: float, step_s: float, progress: Progress) -> dict[str, list[Scrape]]:
        """Returns the scrapes of a span of time.

        Raises:
            ConfigError: No server answers at the start, or a server is not one of vLLM.
        """
        pods: dict[str, list[Scrape]] = {name: [] for name in self._targets}
        pool = Pool(MAX_CONNECTIONS)
        start_s = self._now()
        self._timeout_s = min(self._timeout_s, step_s)
        steps = max(1, round(seconds / step_s))
        for step in range(steps + 1):
            self._sleep(max(0.0, start_s + step * step_s - self._now()))
            for name, scrape in pool.imap_unordered(self._scrape, self._targets):
                if isinstance(scrape, ConfigError):
                    raise scrape
                if scrape is not None:
                    pods[name].append(scrape)
            if not any(pods.values()):
                raise ConfigError("; ".join(self.failures.values()))
            progress(step)
        return {name: scrapes for name, scrapes in pods.items() if scrapes}

    def _scrape(self, name: str) -> tuple[str, Scrape | ConfigError | None]:
        """Returns the metrics of a pod that answers, or why it is not one of vLLM.

        gevent prints the traceback of an error that a greenlet raises.
        """
        target = self._targets[name]
        try:
            content = fetch_metrics(target, self._timeout_s)
        except ConfigError as error:
            self.failures[name] = str(error)
            return name, None
        try:
            return name, read_scrape(f"{target.url}/metrics", content, self._now())
        except ConfigError as error:
            return name, error

    def versions(self) -> dict[str, str]:
        """Returns the version of vLLM by pod, as far as servers answer GET /version."""
        versions = {}
        for name, target in self._targets.items():
            with suppress(ConfigError, UntrustedDataError):
                body = fetch_metrics(target, self._timeout_s, "/version")
                versions[name] = decode_untrusted(body, type=_Version).version[:40]
        return versions


class _Version(Struct):
    version: str


def _pod_name(target: Target) -> str:
    return target.url.removeprefix(f"{target.scheme}://")
