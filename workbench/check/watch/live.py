"""Tries selectors on the metrics that a server exports. Start reading at `read_metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from config.declaration import ConfigError
from workbench.check.findings import Finding
from workbench.check.rules import finding
from workbench.check.watch.catalog import Catalog
from workbench.check.watch.exposition import fetch_metrics, metrics_target, samples_of
from workbench.check.watch.names import PREFIX
from workbench.check.watch.promql import BUCKET_BOUND, Matcher, Selector
from workbench.check.watch.queries import Query

Series = Mapping[str, str]


class LiveMetrics:
    """The series of a server by their names."""

    def __init__(self, url: str, series: Mapping[str, list[Series]]) -> None:
        self._url = url
        self._series = series

    def check(self, query: Query, selector: Selector, catalog: Catalog) -> Iterator[Finding]:
        """Yields why a selector matches nothing on the server."""
        name = selector.name
        if not name.startswith(PREFIX) or catalog.find(name).status == "elsewhere":
            return
        series = self._series.get(name)
        if series is None:
            message = f"{self._url} exports no {name}"
            yield finding("W815", query.place(name), message)
            return
        exported = {label for labels in series for label in labels}
        matchers = []
        for matcher in selector.matchers:
            if matcher.label in exported or matcher.label in catalog.labels | {BUCKET_BOUND}:
                matchers.append(matcher)
        for matcher in matchers:
            if not any(_fits(labels, matcher) for labels in series):
                condition = f"{matcher.label}{matcher.operator}{matcher.value!r}"
                message = f"{self._url} exports no {name} with {condition}"
                yield finding("W815", query.place(matcher.value or matcher.label), message)
                return
        if not any(all(_fits(labels, matcher) for matcher in matchers) for labels in series):
            message = f"{self._url} exports no {name} with these labels"
            yield finding("W815", query.place(name), message)


def read_metrics(url: str) -> LiveMetrics:
    """Returns the metrics of a server; `url` is its base URL, or that of its metrics.

    Raises:
        ConfigError: The server cannot be read, or its answer is not Prometheus' text format.
    """
    target = metrics_target(url)
    address = f"{target.url}/metrics"
    return LiveMetrics(address, series_of(address, fetch_metrics(target)))


def series_of(address: str, content: bytes) -> dict[str, list[Series]]:
    """Returns the labels of all samples by the names of their series.

    Raises:
        ConfigError: The content is not Prometheus' text format, or has no metric of vLLM.
    """
    series: dict[str, list[Series]] = {}
    for sample in samples_of(address, content):
        series.setdefault(sample.name, []).append(sample.labels)
    if not any(name.startswith(PREFIX) for name in series):
        raise ConfigError(f"{address} has no metrics of vLLM")
    return series


def _fits(labels: Series, matcher: Matcher) -> bool:
    """Returns whether a series may fit; a pattern that is more than a list of words may."""
    value = labels.get(matcher.label, "")
    if matcher.operator == "!=":
        return value != matcher.value
    if matcher.operator == "!~" or matcher.alternatives is None:
        return True
    return value in matcher.alternatives
