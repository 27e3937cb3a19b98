"""Reads the metrics of a fleet from a Prometheus server. Start reading at `measure_range`.

The answers of a range query have series by series. Values other than buckets are asked for each
step, and buckets for each window: so a day of 100 pods stays small. Where a pod came, went or was
restarted, its buckets are asked for each step of the window, too.
"""

from __future__ import annotations

import math
import re
import ssl
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import compress
from operator import add
from typing import Annotated, NamedTuple
from urllib.parse import urlencode

import gevent.ssl
import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from app.shared.http_client import Target, whole_response
from config.declaration import MAX_SHOWN_LENGTH, ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.study.measurement import Measurement, PodLabels, shown_models, sum_engines
from workbench.study.quantities import (
    BUCKET_SERIES,
    CACHE_CONFIG,
    IN_FLIGHT_KEY,
    KV_USAGE,
    MAX_UNIX_S,
    MAX_VALUE,
    MODEL,
    OTHER_SERIES,
    RUNNING,
    STARTED,
    WAITING,
    Key,
    is_valid,
    key_of,
)

MAX_RESPONSE_BYTES = 64 << 20
SAMPLES_PER_QUERY = 150_000
"""Samples of an answer, at most; 100 bytes each while they are read."""
MAX_POINTS = 10_000
"""Points of a series in an answer; Prometheus has a limit of 11,000."""
MAX_STEPS = 20_000
SERIES_PER_POD = 45
BUCKETS_PER_POD = 200
MAX_PODS = 5_000
MAX_ERROR_LENGTH = 200
STALE_STEPS = 5
"""Steps without samples before the end from which on data are stale."""
PROBE = "vllm:num_requests_running"
RESET_SERIES = (*BUCKET_SERIES, "vllm:prompt_tokens_created")
"""Buckets, and the start of the process, which shows resets."""
POD_LABELS = ("namespace", "pod", "instance")
"""Labels that name a pod; an instance alone is enough."""
ATTEMPTS = 2
RETRY_STATUSES = (429, 502, 503, 504)


class Series(Struct, frozen=True):
    """A series of an answer: labels, and times in Unix seconds with values as text."""

    metric: dict[str, str]
    values: list[tuple[Annotated[float, Meta(ge=0, le=MAX_UNIX_S)], str]] = []


class _Data(Struct, frozen=True, rename="camel"):
    result_type: str
    result: list[Series]


class _Answer(Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""


class Api:
    """The HTTP API of a Prometheus server, or of one that answers as it does."""

    def __init__(
        self,
        url: str,
        *,
        authorization: str = "",
        tls: gevent.ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        sleep: Callable[[float], None],
    ) -> None:
        """`authorization` is the header's value; `tls` replaces the checks of an https URL.

        Raises:
            ConfigError: The URL is not valid.
        """
        target = Target.from_url(url)
        if tls is not None and target.tls is not None:
            target = replace(target, tls=tls)
        self._target = target
        self._headers = {"Accept": "application/json"}
        if authorization:
            self._headers["Authorization"] = authorization
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._decoder = msgspec.json.Decoder(_Answer)
        self.queries: list[str] = []
        """Distinct queries, for the provenance."""

    @property
    def url(self) -> str:
        """URL of the server, without a password."""
        return self._target.url

    def range(self, query: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Returns the series of a range query.

        Raises:
            ConfigError: The server cannot be read, or answers with an error; one line.
        """
        if query not in self.queries:
            self.queries.append(query)
        parameters = {
            "query": query,
            "start": f"{start_s:.3f}",
            "end": f"{end_s:.3f}",
            "step": f"{step_s:.3f}",
            "timeout": f"{self._timeout_s:.0f}s",
        }
        status = 0
        for attempt in range(ATTEMPTS):
            status, body = self._get(f"/api/v1/query_range?{urlencode(parameters)}")
            if status not in RETRY_STATUSES:
                return self._series(status, body)
            if attempt + 1 < ATTEMPTS:
                self._sleep(1.0)
        raise ConfigError(f"{self.url} returned status {status} {ATTEMPTS} times; try again later")

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            with closing(self._target.connection(self._timeout_s)) as connection:
                response, content = whole_response(
                    connection,
                    "GET",
                    f"{self._target.prefix}{path}",
                    body=None,
                    headers=self._headers,
                    max_bytes=MAX_RESPONSE_BYTES,
                )
        except ssl.SSLError as error:
            reason = error.strerror or error.reason or error
            raise ConfigError(f"{self.url}: TLS failed: {reason}; see --ca-file") from None
        except TimeoutError as error:
            raise ConfigError(
                f"{self.url} cannot be read: {error.strerror or error}; use a longer --timeout, or"
                " a shorter --range"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.url} cannot be read: {error.strerror or error}") from None
        return response.status, content

    def _series(self, status: int, body: bytes) -> list[Series]:
        if status in (401, 403):
            raise ConfigError(
                f"{self.url} returned status {status}; use --bearer-token-file or --basic-auth-file"
            )
        try:
            answer = decode_untrusted(body, decoder=self._decoder)
        except UntrustedDataError:
            if status != 200:
                raise ConfigError(f"{self.url} returned status {status}") from None
            raise ConfigError(
                f"{self.url} is not a Prometheus server: the answer has another form"
            ) from None
        if answer.status != "success" or answer.data is None:
            reason = " ".join(answer.error.split())[:MAX_ERROR_LENGTH] or f"status {status}"
            raise ConfigError(f"{self.url}: {reason}")
        if answer.data.result_type != "matrix":
            raise ConfigError(f"{self.url} is not a Prometheus server: the answer has another form")
        return answer.data.result


class Column(NamedTuple):
    """The values of a series at times."""

    key: Key
    engine: str
    times: tuple[float, ...]
    values: list[float]


class Range(Struct, frozen=True, kw_only=True):
    """Fleet and time of a study."""

    selector: str
    start_s: float
    end_s: float
    step_s: float
    window_s: float | None = None
    group_label: str = ""
    """Label that separates groups of pods."""


def clean_selector(text: str) -> str:
    """Returns the matchers of a selector, without braces.

    Raises:
        ConfigError: It has more than matchers.
    """
    matchers = text.strip()
    if matchers.startswith("{") and matchers.endswith("}"):
        matchers = matchers[1:-1].strip()
    quoted = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`', '""', matchers)
    if not re.fullmatch(r"(\s*[\w.:]+\s*(=|!=|=~|!~)\s*\"\"\s*(,|$))*", quoted):
        raise ConfigError(
            '--selector must have the form \'namespace="prod",model_name="m"\', without a metric'
        )
    return matchers.rstrip(", ")


def measure_range(api: Api, wanted: Range, progress: Callable[[int, int], None]) -> Measurement:
    """Returns the measurement of a range; `progress` receives queries that are done, and all.

    Raises:
        ConfigError: There are no data, or two models, or the server fails.
    """
    steps = round((wanted.end_s - wanted.start_s) / wanted.step_s)
    if not 2 <= steps <= MAX_STEPS:
        raise ConfigError(
            f"the range has {steps} steps; use a --step with which it has 2 to {MAX_STEPS:,}"
        )
    edges = [wanted.start_s + index * wanted.step_s for index in range(steps + 1)]
    measurement = Measurement(edges, wanted.window_s)
    reader = _RangeReader(api, wanted, measurement, progress)
    reader.read()
    return measurement


class _RangeReader:
    def __init__(
        self,
        api: Api,
        wanted: Range,
        measurement: Measurement,
        progress: Callable[[int, int], None],
    ) -> None:
        self._api = api
        self._wanted = wanted
        self._measurement = measurement
        self._progress = progress
        self._done = 0
        self._all = 1
        self._labels: dict[str, dict[str, str]] = {}
        """Labels that name a pod, by its name."""
        self._events: dict[str, set[int]] = {}
        """Windows of pods that came, went, or were restarted."""
        self._edge_of = {mark_of(edge): index for index, edge in enumerate(measurement.edges)}
        self._window_of = {
            mark_of(edge): index for index, edge in enumerate(measurement.window_edges)
        }

    def read(self) -> None:
        """Reads pods, then values by step, and buckets by window."""
        pods = self._find_pods()
        measurement = self._measurement
        edges = measurement.edges
        step_spans = list(_spans(len(edges), SERIES_PER_POD * pods))
        window_edges = measurement.window_edges
        window_spans = list(_spans(len(window_edges), BUCKETS_PER_POD * pods))
        regular = self._regular_windows()
        self._all = 2 + len(step_spans) + (len(window_spans) if regular else len(window_edges))
        self._read_facts()
        query = f'{{__name__=~"{"|".join(OTHER_SERIES)}"{self._matchers()}}}'
        for first, last in step_spans:
            series = self._query(query, edges[first], edges[last - 1], self._wanted.step_s)
            self._add_steps(series)
        self._find_events()
        self._read_buckets(window_spans if regular else None)

    def _matchers(self) -> str:
        return f",{self._wanted.selector}" if self._wanted.selector else ""

    def _query(self, query: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        series = self._api.range(query, start_s, end_s, step_s)
        self._done += 1
        self._progress(self._done, max(self._all, self._done))
        return series

    def _find_pods(self) -> int:
        """Returns the number of pods.

        Raises:
            ConfigError: There are none, or too many, or more than one model.
        """
        wanted = self._wanted
        probe = f"{PROBE}{{{wanted.selector}}}"
        series = self._query(probe, wanted.start_s, wanted.end_s, self._coarse_step())
        if not series:
            raise ConfigError(
                f"{self._api.url} has no {probe} between the start and the end; check --selector,"
                " --range and --end, and whether Prometheus scrapes the pods"
            )
        models = sorted({each.metric.get(MODEL, "") for each in series} - {""})
        if len(models) > 1:
            raise ConfigError(
                f"the selector has {shown_models(models)}; a study has one, so add"
                f' model_name="{models[0][:MAX_SHOWN_LENGTH]}" to --selector'
            )
        self._check_scraped_once(series)
        for each in series:
            name = _pod_name(each.metric)
            self._labels.setdefault(name, _pod_labels(each.metric))
            facts = self._pod(name)
            facts.model = models[0] if models else ""
            facts.group = each.metric.get(wanted.group_label, "") if wanted.group_label else ""
        last_s = max((each.values[-1][0] for each in series if each.values), default=0.0)
        age_s = wanted.end_s - last_s
        if age_s > max(STALE_STEPS * wanted.step_s, 2 * self._coarse_step()):
            self._measurement.warnings.append(
                f"the newest sample is {age_s / 60:.0f} minutes older than the end of the range;"
                " is the fleet still scraped?"
            )
        return len(self._measurement.pods)

    def _pod(self, name: str) -> PodLabels:
        """Returns the facts of a pod, which may be new.

        Raises:
            ConfigError: There are too many pods.
        """
        pods = self._measurement.pods
        if name not in pods and len(pods) >= MAX_PODS:
            raise ConfigError(f"the selector has more than {MAX_PODS:,} pods")
        return pods.setdefault(name, PodLabels(name=name))

    def _check_scraped_once(self, series: Sequence[Series]) -> None:
        """Checks that no pod has two series at a time.

        Raises:
            ConfigError: Two jobs scrape a pod, whose counts would be doubled.
        """
        seen: dict[tuple[str, str], dict[float, Series]] = {}
        for each in series:
            name = _pod_name(each.metric)
            known = seen.setdefault((name, each.metric.get("engine", "")), {})
            shared: Counter[int] = Counter()
            for time_s in {time_s for time_s, _ in each.values}:
                other = known.setdefault(time_s, each)
                if other is each:
                    continue
                shared[id(other)] += 1
                if shared[id(other)] > 1:
                    different = [
                        f'{label}="{value}"'
                        for label, value in each.metric.items()
                        if other.metric.get(label) != value
                    ]
                    raise ConfigError(
                        f"{name or 'a pod'} has two series at a time, which differ in"
                        f" {', '.join(different)[:200]}; add one of these to --selector"
                    )

    def _coarse_step(self) -> float:
        """Returns a step with which the whole range is one query."""
        wanted = self._wanted
        return max(wanted.step_s, (wanted.end_s - wanted.start_s) / 500)

    def _read_facts(self) -> None:
        """Reads the configuration of the KV cache, which has no label of the model."""
        wanted = self._wanted
        labels = ", ".join(POD_LABELS)
        query = f"{CACHE_CONFIG} and on ({labels}) {PROBE}{{{wanted.selector}}}"
        for each in self._query(query, wanted.start_s, wanted.end_s, self._coarse_step()):
            facts = self._measurement.pods.get(_pod_name(each.metric))
            if facts is not None:
                facts.config = {
                    name: value[:200] for name, value in each.metric.items() if name != "__name__"
                }

    def _by_pod(self, series: Iterable[Series]) -> dict[str, list[Column]]:
        """Returns the columns of each pod; invalid samples are left out."""
        pods: dict[str, list[Column]] = {}
        for each in series:
            key = key_of(each.metric.get("__name__", ""), each.metric)
            if key is None or not each.values:
                continue
            times, texts = zip(*each.values, strict=True)
            try:
                values = list(map(float, texts))
            except ValueError:
                values = [_float_of(text) for text in texts]
            if not (min(values) >= 0 and max(values) <= MAX_VALUE and math.isfinite(sum(values))):
                valid = [is_valid(value) for value in values]
                self._measurement.invalid_samples += valid.count(False)
                times = tuple(compress(times, valid))
                values = list(compress(values, valid))
            if times:
                column = Column(key, each.metric.get("engine", ""), times, values)
                pods.setdefault(_pod_name(each.metric), []).append(column)
        return pods

    def _add_steps(self, series: Sequence[Series]) -> None:
        measurement = self._measurement
        edges = measurement.edges
        for pod, columns in self._by_pod(series).items():
            self._pod(pod)
            block = _block_of(columns, self._edge_of)
            if block is not None:
                first, values = block
                resets = measurement.add_block(pod, first, values)
            else:
                resets = []
                for mark, row in sorted(_rows_of(columns).items()):
                    index = self._edge_of.get(mark)
                    if index is None:
                        continue
                    if measurement.add(pod, edges[index], row):
                        resets.append(edges[index])
                    measurement.levels.add(index, row)
            for time_s in resets:
                self._note_event(pod, time_s)

    def _note_event(self, pod: str, time_s: float) -> None:
        edges = self._measurement.window_edges
        if edges[0] < time_s <= edges[-1]:
            self._events.setdefault(pod, set()).add(bisect_left(edges, time_s) - 1)

    def _find_events(self) -> None:
        """Notes the windows of pods that came, went, or had no samples."""
        measurement = self._measurement
        first_s = measurement.edges[0]
        last_s = measurement.edges[-1]
        for pod, state in measurement.steps.pods.items():
            if state.first_s > first_s:
                self._note_event(pod, state.first_s)
            if state.last.time_s < last_s:
                self._note_event(pod, state.last.time_s + self._wanted.step_s)
                self._note_event(pod, state.last.time_s)
            for start_s, end_s in state.gaps:
                self._note_event(pod, start_s + self._wanted.step_s)
                self._note_event(pod, end_s)

    def _regular_windows(self) -> bool:
        """Returns whether all windows but the last one are equally long."""
        indexes = self._measurement.window_indexes
        lengths = {last - first for first, last in zip(indexes, indexes[1:], strict=False)}
        return len(lengths) == 1

    def _read_buckets(self, spans: Sequence[tuple[int, int]] | None) -> None:
        """Reads buckets at the edges of windows, one window after another.

        Without `spans`, windows have different lengths, and each edge is a query.
        """
        query = f'{{__name__=~"{"|".join(RESET_SERIES)}"{self._matchers()}}}'
        edges = self._measurement.window_edges
        if spans is None:
            spans = [(index, index + 1) for index in range(len(edges))]
        last_window = -1
        for first, last in spans:
            step_s = edges[1] - edges[0]
            series = self._query(query, edges[first], edges[last - 1], step_s)
            by_pod = self._by_pod(series)
            events: dict[str, list[Column]] = {}
            for window in range(max(0, last_window), last - 1):
                self._read_events(window, events)
            last_window = last - 1
            for pod, columns in by_pod.items():
                block = None
                if pod not in events:
                    block = _block_of(columns, self._window_of)
                if block is not None:
                    self._measurement.add_bucket_block(pod, *block)
                    continue
                for mark, row in sorted(_rows_of(columns + events.pop(pod, [])).items()):
                    self._measurement.add_buckets(pod, mark / 1000, row)
            for pod, columns in events.items():
                for mark, row in sorted(_rows_of(columns).items()):
                    self._measurement.add_buckets(pod, mark / 1000, row)

    def _read_events(self, window: int, by_pod: dict[str, list[Column]]) -> None:
        """Reads the buckets of a window by step, for pods that came, went, or were restarted."""
        edges = self._measurement.window_edges
        for pod, windows in self._events.items():
            if window not in windows:
                continue
            labels = ",".join(
                f"{label}={msgspec.json.encode(value).decode()}"
                for label, value in self._labels.get(pod, {}).items()
            )
            if not labels:
                continue
            query = f'{{__name__=~"{"|".join(RESET_SERIES)}",{labels}{self._matchers()}}}'
            self._all += 1
            series = self._query(query, edges[window], edges[window + 1], self._wanted.step_s)
            for name, columns in self._by_pod(series).items():
                by_pod.setdefault(name, []).extend(columns)


def mark_of(time_s: float) -> int:
    """Returns a time as a key: milliseconds."""
    return round(time_s * 1000)


def _block_of(
    columns: Sequence[Column], index_of: Mapping[int, int]
) -> tuple[int, dict[Key, list[float]]] | None:
    """Returns the index of the first time, and the columns; None if times are not regular."""
    times = columns[0].times
    if any(column.times != times for column in columns):
        return None
    first = index_of.get(mark_of(times[0]))
    last = index_of.get(mark_of(times[-1]))
    if first is None or last is None or last - first != len(times) - 1:
        return None
    values: dict[Key, list[float]] = {}
    engines: dict[Key, int] = {}
    for column in columns:
        earlier = values.get(column.key)
        engines[column.key] = engines.get(column.key, 0) + 1
        if earlier is None:
            values[column.key] = column.values
        elif column.key.quantity == STARTED:
            values[column.key] = list(map(max, earlier, column.values))
        else:
            values[column.key] = list(map(add, earlier, column.values))
    usage = Key(KV_USAGE)
    if engines.get(usage, 0) > 1:
        values[usage] = [value / engines[usage] for value in values[usage]]
    running = values.get(Key(RUNNING))
    if running is not None:
        waiting = values.get(Key(WAITING), [0.0] * len(times))
        values[IN_FLIGHT_KEY] = list(map(add, running, waiting))
    return first, values


def _rows_of(columns: Sequence[Column]) -> dict[int, dict[Key, float]]:
    """Returns the values of a pod by time in milliseconds; those of engines add up."""
    samples: dict[int, list[tuple[Key, float]]] = {}
    seen: set[tuple[Key, str, int]] = set()
    for column in columns:
        for time_s, value in zip(column.times, column.values, strict=True):
            mark = mark_of(time_s)
            identity = (column.key, column.engine, mark)
            if identity not in seen:
                seen.add(identity)
                samples.setdefault(mark, []).append((column.key, value))
    return {mark: sum_engines(pairs) for mark, pairs in samples.items()}


def _float_of(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _pod_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels that name a pod: its namespace and name, or else the address."""
    names = ("namespace", "pod") if labels.get("pod") else ("namespace", "instance")
    return {name: labels[name] for name in names if labels.get(name)}


def _pod_name(labels: Mapping[str, str]) -> str:
    return "/".join(value[:200] for value in _pod_labels(labels).values())


def _spans(points: int, series: int) -> Iterator[tuple[int, int]]:
    """Yields the first and the end index of parts of a range, so that answers are small."""
    length = max(1, min(MAX_POINTS, SAMPLES_PER_QUERY // max(1, series)))
    for first in range(0, points, length):
        yield first, min(points, first + length)
