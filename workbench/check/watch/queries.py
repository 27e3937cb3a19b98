"""Finds queries in documents: dashboards, rules, autoscalers, and the adapter of Prometheus.

Start reading at `find_queries`. Text that holds another document, such as a dashboard in a
ConfigMap, is read, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import yaml

from config.declaration import ConfigError
from workbench.check.documents import Value
from workbench.check.findings import Place
from workbench.check.reading import parse_documents
from workbench.check.watch.names import TARGET_KEYS, alternatives_of, names_of, prefix_of

Form = Literal["promql", "name", "beginning"]
Keys = Mapping[str, Value]
VLLM = "vllm"
"""Part of each text with a metric of vLLM."""
DASHBOARD_KEYS = frozenset(("panels", "rows", "mosaicLayout", "gridLayout", "templating"))
DASHBOARD_KINDS = frozenset(("Dashboard", "PersesDashboard", "GrafanaDashboard"))
EXPRESSIONS = ("expr", "query", "prometheusQuery")
"""Keys of dashboards whose texts are PromQL, or a function of Grafana around it."""
OTHER_LANGUAGES = frozenset(
    ("loki", "tempo", "elasticsearch", "influxdb", "mysql", "postgres", "cloudwatch")
)
"""Data sources of Grafana that have a query language of their own."""
PLAIN_VARIABLES = frozenset(("custom", "textbox", "constant", "interval", "datasource", "adhoc"))
"""Variables of Grafana whose `query` is a list of values."""
WATCHERS = frozenset(
    (
        *DASHBOARD_KINDS,
        "HorizontalPodAutoscaler",
        "PodAutoscaler",
        "PrometheusRule",
        "ScaledJob",
        "ScaledObject",
        "VMRule",
    )
)
"""Kinds of documents that hold queries."""
METRIC_SOURCES = ("pods", "object", "external")
MAX_DEPTH = 3
"""Documents in texts of documents in texts."""
MAX_EMBEDDED = 200
"""Texts of a document that are read as documents, such as the dashboards of a ConfigMap."""
_FUNCTION = re.compile(r"\s*(?P<name>label_values|query_result|label_names|metrics)\s*\(", re.I)
_LABEL = re.compile(r",\s*(?P<label>[^\s,(){}\"'=]+)\s*\)\s*$")
_GOOGLE = re.compile(r"prometheus\.googleapis\.com[|/](?P<name>[^|/]+)[|/](?P<kind>\w+)")
_TEMPLATE = re.compile(r"<<[^<>]*>>")
_MAPPING = re.compile(r"^[ \t]*(?:- )?[\w./-]+:(?:[ \t]|$)", re.M)
LABEL_OF_NAMES = "__name__"


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and where it is written."""

    text: str
    value: Value
    form: Form = "promql"
    start: int = 0
    """Characters of the value in front of `text`."""
    label: str = ""
    """Label whose values the query asks for."""
    records: str = ""
    """Metric that the rule of the query makes."""
    kind: str = ""
    """Kind of the metric that the name states; of names only."""
    target: Value | None = None
    """Value that an autoscaler wants the metric to have."""

    def place(self, word: str = "") -> Place:
        """Returns the place of the query, or of a word in the query."""
        offset = 0
        if word:
            match = re.search(rf"(?<![\w:]){re.escape(word)}(?![\w:])", self.text)
            offset = match.start() if match is not None else max(0, self.text.find(word))
        return self.value.content.place(self.start + offset)


class Adapted(NamedTuple):
    """A name that the adapter of Prometheus gives to a metric."""

    name: str


def find_queries(document: Value) -> Iterator[Query | Adapted]:
    """Yields the queries of a document, and the names that it gives to metrics."""
    yield from _Finder().find(document)


def is_watcher(document: Value) -> bool:
    """Returns whether a document is of a kind that asks for metrics, such as a dashboard."""
    keys = keys_of(document)
    if _text(keys, "kind") in WATCHERS or _is_dashboard(document):
        return True
    return next(find_queries(document), None) is not None


def keys_of(value: Value) -> Keys:
    """Returns the values of a mapping by their keys; those that it merges (`<<`) are left out."""
    if not isinstance(value.node, yaml.MappingNode):
        return {}
    keys = {}
    for key, node in value.node.value:
        if isinstance(key, yaml.ScalarNode):
            keys[key.value] = Value(node, value.source)
    return keys


class _Finder:
    """Finds queries; the documents in texts are counted, because each is parsed."""

    def __init__(self) -> None:
        self._embedded_count = 0

    def find(self, document: Value, depth: int = 0) -> Iterator[Query | Adapted]:
        """Yields the queries of a document that is in the texts of `depth` others."""
        is_dashboard = _is_dashboard(document)
        found: set[int] = set()
        for value in document.walk():
            if value.is_text:
                yield from self._embedded(value, depth)
            elif value.is_mapping:
                keys = keys_of(value)
                readers = [_rule, _trigger, _adapter, _autoscaler, _relabeling]
                if is_dashboard:
                    readers.append(_dashboard)
                for read in readers:
                    for query in read(keys):
                        if isinstance(query, Query):
                            found.add(id(query.value.node))
                        yield query
        if not is_dashboard:
            yield from _named(document, found)

    def _embedded(self, value: Value, depth: int) -> Iterator[Query | Adapted]:
        """Yields the queries of a document that is written in a text of another one."""
        text = value.text
        is_json = text.lstrip().startswith("{")
        is_yaml = "\n" in text and _MAPPING.search(text) is not None
        if depth >= MAX_DEPTH or VLLM not in text or not (is_json or is_yaml):
            return
        self._embedded_count += 1
        if self._embedded_count > MAX_EMBEDDED:
            return
        try:
            documents = parse_documents(value.content, is_json=is_json)
        except ConfigError:
            return  # a template, or a text that only looks like a document
        for document in documents:
            yield from self.find(document, depth + 1)


def _is_dashboard(document: Value) -> bool:
    keys = keys_of(document)
    if _text(keys, "kind") in DASHBOARD_KINDS:
        return True
    names = set(keys)
    if "dashboard" in keys:
        names.update(keys_of(keys["dashboard"]))
    return not names.isdisjoint(DASHBOARD_KEYS)


def _text(keys: Keys, name: str) -> str:
    """Returns the text of a key; empty for a list, a mapping, or a number."""
    value = keys.get(name)
    return value.text if value is not None and value.is_text else ""


def _asks(value: Value | None) -> bool:
    """Returns whether a value is a text that may ask for a metric of vLLM."""
    return value is not None and value.is_text and VLLM in value.text


def _rule(keys: Keys) -> Iterator[Query]:
    """Yields the expression of a rule of Prometheus."""
    record = _text(keys, "record")
    is_rule = record or _text(keys, "alert")
    if is_rule and "expr" in keys and (record or _asks(keys["expr"])):
        yield Query(keys["expr"].text, keys["expr"], records=record)


def _named(document: Value, found: set[int]) -> Iterator[Query]:
    """Yields the metrics that other texts of a document are, or begin with.

    `found` has the nodes of queries that are known already.
    """
    seen: set[int] = set()
    pending = [("", document, cast(Keys, {}))]
    while pending:
        key, value, siblings = pending.pop()
        if value.node is None or id(value.node) in seen:
            continue
        seen.add(id(value.node))
        if value.is_text and "vllm:" in value.text and id(value.node) not in found:
            for part in names_of(key, value.text):
                form: Form = "promql" if part.is_query else "name"
                target = _target(siblings)
                yield Query(part.text, value, form=form, start=part.start, target=target)
        elif isinstance(value.node, yaml.MappingNode):
            keys = keys_of(value)
            pending += [(name, each, keys) for name, each in reversed(list(keys.items()))]
        else:
            pending += [(key, each, {}) for each in reversed(value.children())]


def _target(keys: Keys) -> Value | None:
    """Returns the value that an autoscaler wants for the metric of the same mapping."""
    for name in TARGET_KEYS:
        value = keys.get(name)
        if value is not None and value.text:
            return value
    return None


def _relabeling(keys: Keys) -> Iterator[Query]:
    """Yields the metrics that a relabeling of Prometheus keeps, or changes."""
    sources = keys.get("sourceLabels") or keys.get("source_labels")
    pattern = keys.get("regex")
    if sources is None or pattern is None or not _asks(pattern):
        return
    if [each.text for each in sources] != [LABEL_OF_NAMES] or _text(keys, "action") == "drop":
        return
    for each in alternatives_of(pattern.text):
        if prefix_of(each.text):
            form: Form = "name" if each.is_whole else "beginning"
            yield Query(each.text, pattern, form=form)


def _trigger(keys: Keys) -> Iterator[Query]:
    """Yields the query of a trigger of KEDA, or of an analysis of Argo Rollouts."""
    query = None
    target = None
    if _text(keys, "type") == "prometheus" and "metadata" in keys:
        metadata = keys_of(keys["metadata"])
        query = metadata.get("query")
        target = _target(metadata)
    elif "prometheus" in keys:
        query = keys_of(keys["prometheus"]).get("query")
    if query is not None and _asks(query):
        yield Query(query.text, query, target=target)


def _adapter(keys: Keys) -> Iterator[Query | Adapted]:
    """Yields the queries of a rule of prometheus-adapter."""
    if "seriesQuery" not in keys:
        return
    for name in ("seriesQuery", "metricsQuery"):
        value = keys.get(name)
        if value is not None and _asks(value):
            # A template becomes a variable of the same length, which may stand for anything.
            text = _TEMPLATE.sub(lambda match: f"${{{'v' * (len(match[0]) - 3)}}}", value.text)
            yield Query(text, value)
    if "name" in keys:
        yield Adapted(_text(keys_of(keys["name"]), "as"))


def _autoscaler(keys: Keys) -> Iterator[Query]:
    """Yields the metrics of a HorizontalPodAutoscaler, or of AIBrix's PodAutoscaler."""
    names = [(keys.get("targetMetric"), _target(keys))]
    for source in METRIC_SOURCES:
        if source in keys:
            metric = keys_of(keys[source])
            target = _target(keys_of(metric["target"]) if "target" in metric else metric)
            names.append((metric.get("metricName"), target))
            if "metric" in metric:
                names.append((keys_of(metric["metric"]).get("name"), target))
    for value, target in names:
        if value is None or not _asks(value):
            continue
        match = _GOOGLE.fullmatch(value.text)
        if match is None:
            yield Query(value.text, value, form="name", target=target)
        else:
            yield Query(
                match["name"],
                value,
                form="name",
                start=match.start("name"),
                kind=match["kind"],
                target=target,
            )


def _dashboard(keys: Keys) -> Iterator[Query]:
    """Yields the queries of a panel, an annotation, or a variable."""
    if _text(keys, "alert") or _text(keys, "record") or _has_other_language(keys):
        return
    names = [*EXPRESSIONS]
    if _text(keys, "type") in PLAIN_VARIABLES:
        names.remove("query")
    if not _is_copy(keys):
        names.append("definition")
    for name in names:
        value = keys.get(name)
        if value is not None and _asks(value):
            yield from _expression(value)
    if "labelName" in keys and "matchers" in keys:  # a variable of Perses
        for value in keys["matchers"]:
            if _asks(value):
                yield Query(value.text, value, label=_text(keys, "labelName"))


def _is_copy(keys: Keys) -> bool:
    """Returns whether the `definition` of a variable repeats its query, as Grafana writes it."""
    query = keys.get("query")
    if query is None:
        return False
    written = query.text or _text(keys_of(query), "query")
    return written == _text(keys, "definition")


def _has_other_language(keys: Keys) -> bool:
    source = keys.get("datasource")
    return source is not None and _text(keys_of(source), "type").lower() in OTHER_LANGUAGES


def _expression(value: Value) -> Iterator[Query]:
    """Yields the query of a text, which may be in a function of Grafana."""
    text = value.text
    match = _FUNCTION.match(text)
    if match is None:
        yield Query(text, value)
        return
    start = match.end()
    end = text.rfind(")")
    function = match["name"].lower()
    if end < start or function in ("metrics", "label_names"):
        return
    label = ""
    if function == "label_values":
        last = _LABEL.search(text)
        if last is None:
            return  # the values of a label of all series
        end = last.start()
        label = last["label"]
    yield Query(text[start:end], value, start=start, label=label)
