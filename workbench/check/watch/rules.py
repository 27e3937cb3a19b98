"""Finds errors in queries for a version of vLLM. Start reading at `QueryRules.check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workbench.check.findings import Finding, Place
from workbench.check.rules import HIDDEN_METRICS_OPTION, finding
from workbench.check.watch.catalog import (
    OTHER_PROGRAMS,
    PLUGGABLE,
    ROUTER,
    ROUTER_NAMES,
    Catalog,
    Family,
    Found,
)
from workbench.check.watch.names import PREFIX, plain_name, prefix_of
from workbench.check.watch.promql import (
    BUCKET_BOUND,
    MARKER,
    VARIABLE,
    Expression,
    Matcher,
    Quantile,
    Selector,
)
from workbench.check.watch.queries import Query
from workbench.check.watch.ranges import INFINITY, SHARE, Range, quantity, range_of_metric

SERVER_LABEL = "server"
"""Label of the router's metrics, which vLLM's do not have."""
VLLM_LABELS = frozenset(("model_name", "engine"))
ENGINE_PORT = ("endpoint", "service-port")
"""Target label of vLLM's pods in production-stack; that of the router is `router-sport`."""
PLAIN_PREFIXES = ("vllm_", "ray_vllm_")
"""Beginnings of vLLM's names in autoscalers, whose names have no colons."""
GOOGLE_KINDS = frozenset(("counter", "gauge", "histogram"))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts of the whole input that decide about a query."""

    recorded: frozenset[str] = frozenset()
    """Metrics that rules make."""
    adapted: frozenset[str] = frozenset()
    """Names that the adapter of Prometheus makes."""
    router_files: frozenset[str] = frozenset()
    """Files with a query of a metric that only the router exports."""


class QueryRules:
    """Checks queries for one version."""

    def __init__(self, catalog: Catalog, surroundings: Surroundings) -> None:
        self._catalog = catalog
        self._surroundings = surroundings
        self._version = f"vLLM {catalog.version}"

    def check(self, query: Query, expression: Expression) -> Iterator[Finding]:
        """Yields the findings of a query that was read."""
        in_quantiles: set[str] = set()
        for quantile in expression.quantiles:
            for each in self._histogram_call(query, quantile):
                in_quantiles.update(selector.name for selector in quantile.selectors)
                yield each
        for selector in dict.fromkeys(expression.selectors):
            if not self._is_vllm(selector.name):
                continue
            looked_up = self._catalog.find(selector.name)
            problem = self._name(query, selector, looked_up)
            if problem is not None:
                if problem.code != "W812" or selector.name not in in_quantiles:
                    yield problem
                continue
            if looked_up.status == "here":
                yield from self._labels(query, selector, looked_up)
        yield from self._rates(query, expression)
        yield from self._groupings(query, expression)
        yield from _comparisons(query, expression)
        name = next((each.name for each in expression.selectors), "")
        yield from _targets(query, name, expression.values)

    def check_beginning(self, query: Query) -> Iterator[Finding]:
        """Yields that no metric has the beginning that a pattern asks for."""
        beginning = query.text
        if plain_name(beginning).startswith(PLUGGABLE) or self._catalog.has_beginning(beginning):
            return
        message = f"{self._version} has no metric that begins with {beginning}"
        yield finding("W804", query.place(beginning), message)

    def check_name(self, query: Query) -> Iterator[Finding]:
        """Yields the findings of a name that an autoscaler asks for."""
        name = query.text
        if name.startswith(PLAIN_PREFIXES):
            yield from self._plain_name(query, name)
        elif prefix_of(name):
            if not self._is_vllm(name):
                return
            looked_up = self._catalog.find(name)
            problem = self._name(query, Selector(name, ()), looked_up)
            if problem is not None:
                yield problem
            elif looked_up.status == "here":
                yield from self._stated_kind(query, looked_up.family)
                yield from _targets(query, name, range_of_metric(name))

    def _plain_name(self, query: Query, name: str) -> Iterator[Finding]:
        """Yields that a name without colons, which an adapter may make, is one of the past."""
        if name in self._surroundings.adapted:
            return
        metric = name.replace("vllm_", PREFIX, 1)
        looked_up = self._catalog.find(metric)
        if looked_up.status == "removed" and looked_up.family.name not in ROUTER_NAMES:
            message = f"{name} sounds like {metric}, which {self._removal(looked_up)}"
            yield finding("W816", query.place(), message, fix=self._replacement(looked_up))

    def _is_vllm(self, name: str) -> bool:
        return bool(prefix_of(name)) and name not in self._surroundings.recorded

    def _name(self, query: Query, selector: Selector, looked_up: Found) -> Finding | None:
        """Returns what is wrong with the name of a selector."""
        name = selector.name
        place = query.place(name)
        if looked_up.status == "removed":
            if self._is_of_router(query, selector):
                message = f"{self._removal(looked_up, name)}; {ROUTER} still exports it"
                return finding("W817", place, message)
            fix = self._replacement(looked_up)
            code = "W801"
            if fix.startswith(f"use {looked_up.prefix}") and " " not in fix[4:]:
                code = "W802"  # one name, and no expression
            return finding(
                code, place, self._removal(looked_up, name), fix=fix or "remove the query"
            )
        if looked_up.status == "later" and looked_up.lifetime is not None:
            first = looked_up.lifetime.periods[0][0]
            message = f"{self._version} has no metric {name}, which came in {first}"
            return finding("W805", place, message)
        if looked_up.status == "unknown":
            similar = self._catalog.similar(name)
            message = f"{self._version} has no metric {name}"
            if similar:
                return finding("W803", place, message, fix=f"use {similar}")
            return finding("W804", place, message)
        if looked_up.status == "here":
            return self._series(query, selector, looked_up) or self._hidden(
                query, selector, looked_up
            )
        return None

    def _hidden(self, query: Query, selector: Selector, looked_up: Found) -> Finding | None:
        """Returns that a metric is empty without an option."""
        if not self._catalog.is_hidden(looked_up) or self._is_of_router(query, selector):
            return None
        name = selector.name
        message = f"{self._version} shows {name} only with {HIDDEN_METRICS_OPTION}"
        return finding("W819", query.place(name), message, fix=self._replacement(looked_up))

    def _series(self, query: Query, selector: Selector, looked_up: Found) -> Finding | None:
        """Returns what is wrong with the suffix of a name."""
        family = looked_up.family
        place = query.place(selector.name)
        if family.kind == "histogram" and not looked_up.suffix:
            message = f"the histogram {family.name} has no series of this name"
            return finding("W812", place, message, fix=f"use {family.name}_bucket, _sum, or _count")
        if looked_up.suffix and family.kind in ("counter", "gauge"):
            if family.kind == "counter" and looked_up.suffix == "_created":
                return None
            message = f"the {family.kind} {family.name} has no {looked_up.suffix}"
            return finding("W812", place, message, fix=f"use {family.name}")
        return None

    def _is_of_router(self, query: Query, selector: Selector) -> bool:
        if selector.name not in ROUTER_NAMES:
            return False
        labels = {matcher.label for matcher in selector.matchers}
        if SERVER_LABEL in labels:
            return True
        if any((each.label, each.value) == ENGINE_PORT for each in selector.matchers):
            return False
        is_near = query.value.file in self._surroundings.router_files
        return is_near and labels.isdisjoint(VLLM_LABELS)

    def _removal(self, looked_up: Found, name: str = "") -> str:
        assert looked_up.lifetime is not None
        text = f"vLLM removed {name}" if name else "vLLM removed"
        ends = [end for _, end in looked_up.lifetime.periods if end]
        return f"{text} in {ends[-1]}"

    def _replacement(self, looked_up: Found) -> str:
        """Returns the advice for a metric that was removed; empty without one."""
        assert looked_up.lifetime is not None
        replacement = looked_up.lifetime.replacement
        if replacement in ("", "unknown"):
            return ""
        if replacement.startswith(PREFIX) and " " not in replacement:
            if not self._catalog.is_here(replacement):
                return ""
            replacement += looked_up.suffix
        return f"use {replacement}".replace(PREFIX, looked_up.prefix)

    def _labels(self, query: Query, selector: Selector, looked_up: Found) -> Iterator[Finding]:
        """Yields what is wrong with the conditions on labels."""
        labels = _labels_of(looked_up)
        if labels is None:
            return
        if query.label and self._is_foreign(query.label, labels):
            yield self._no_label(query, query.label, selector.name, labels)
        for matcher in selector.matchers:
            if self._is_foreign(matcher.label, labels):
                if matcher.needs_label:
                    yield self._no_label(query, matcher.label, selector.name, labels)
            elif matcher.label == BUCKET_BOUND:
                yield from self._bound(query, matcher, looked_up.family)
            elif matcher.label in looked_up.family.values:
                yield from self._value(query, matcher, looked_up.family)

    def _is_foreign(self, label: str, labels: frozenset[str]) -> bool:
        """Returns whether a label is one of vLLM's, but not of these labels."""
        return label in self._catalog.labels | {BUCKET_BOUND} and label not in labels

    def _no_label(
        self, query: Query, label: str, name: str, labels: Iterable[str], verb: str = "has"
    ) -> Finding:
        message = f"{name} {verb} no label {label}"
        return finding("W806", query.place(label), message, fix=f"use {_listed(labels)}")

    def _value(self, query: Query, matcher: Matcher, family: Family) -> Iterator[Finding]:
        if matcher.operator not in ("=", "=~"):
            return
        values = family.values[matcher.label]
        for value in matcher.alternatives or ():
            if value and value not in values:
                message = f"{matcher.label} of {family.name} is never {value!r}"
                yield finding("W807", query.place(value), message, fix=f"use {_listed(values)}")

    def _bound(self, query: Query, matcher: Matcher, family: Family) -> Iterator[Finding]:
        """Yields the bounds that the histogram does not have."""
        for value in matcher.alternatives or ():
            text = _known_bound(value, family)
            if text == value:
                continue
            message = f"{family.name} has no bucket with le={value!r}"
            if text:
                yield finding("W811", query.place(value), message, fix=f'use "{text}"')
            else:
                bounds = _near_bounds(value, family)
                fix = f"use {_listed(bounds)}" if bounds else ""
                yield finding("W811", query.place(value), message, fix=fix)

    def _histogram_call(self, query: Query, quantile: Quantile) -> Iterator[Finding]:
        """Yields what is wrong with a call of histogram_quantile."""
        selectors = [each for each in quantile.selectors if self._is_vllm(each.name)]
        if quantile.without_bounds and any(each.name.endswith("_bucket") for each in selectors):
            message = "the aggregation in histogram_quantile drops the label le"
            yield finding("W809", query.place("histogram_quantile"), message, fix="add le to by")
        for selector in selectors:
            looked_up = self._catalog.find(selector.name)
            if looked_up.status != "here" or looked_up.suffix == "_bucket":
                continue
            kind = looked_up.family.kind
            if kind == "histogram":
                message = f"histogram_quantile needs buckets, and {selector.name} has none"
                fix = f"use {looked_up.family.name}_bucket"
            elif kind:
                message = f"histogram_quantile needs buckets, and {selector.name} is a {kind}"
                fix = ""
            else:
                continue
            yield finding("W810", query.place(selector.name), message, fix=fix)

    def _rates(self, query: Query, expression: Expression) -> Iterator[Finding]:
        for rate in dict.fromkeys(expression.rates):
            name = rate.selector.name
            if not self._is_vllm(name):
                continue
            looked_up = self._catalog.find(name)
            if (
                looked_up.status == "here"
                and looked_up.family.kind == "gauge"
                and not looked_up.suffix
            ):
                message = f"{rate.function} of {name}, which is a gauge"
                yield finding("W808", query.place(name), message, fix="use deriv or delta")

    def _groupings(self, query: Query, expression: Expression) -> Iterator[Finding]:
        """Yields labels of `by` that none of the series has."""
        for grouping in dict.fromkeys(expression.groupings):
            labels: set[str] = set()
            for selector in grouping.selectors:
                known = None
                if self._is_vllm(selector.name):
                    found = self._catalog.find(selector.name)
                    known = _labels_of(found) if found.status == "here" else None
                if known is None:
                    break  # its labels are not known
                labels |= known
            else:
                for label in grouping.labels:
                    if labels and self._is_foreign(label, frozenset(labels)):
                        name = grouping.selectors[0].name
                        yield self._no_label(query, label, name, labels)

    def _stated_kind(self, query: Query, family: Family) -> Iterator[Finding]:
        """Yields a kind that the name of Google's adapter states, and the metric does not have."""
        is_stated = query.kind in GOOGLE_KINDS and family.kind
        if is_stated and query.kind != family.kind:
            message = f"{family.name} is a {family.kind}, not a {query.kind}"
            yield finding("W812", query.place(), message, fix=f"use |{family.kind}")


def _comparisons(query: Query, expression: Expression) -> Iterator[Finding]:
    """Yields comparisons with a number that decide nothing."""
    for comparison in dict.fromkeys(expression.comparisons):
        if comparison.verdict:
            word = "above" if comparison.operator.startswith(">") else "below"
            relation = f"{word} or equal to" if comparison.operator.endswith("=") else word
            yield _out_of_range(
                query.place(comparison.metric),
                name=comparison.metric,
                values=comparison.values,
                verdict=f"{comparison.verdict} {relation} {comparison.number:g}",
                number=comparison.number,
            )


def _targets(query: Query, name: str, values: Range) -> Iterator[Finding]:
    """Yields the target of an autoscaler that the metric never reaches."""
    if query.target is None:
        return
    number = quantity(query.target.text)
    if number is not None and number > values.high:
        verdict = f"never {query.target.text}"
        place = query.target.place
        yield _out_of_range(place, name=name, values=values, verdict=verdict, number=number)


def _out_of_range(
    place: Place, *, name: str, values: Range, verdict: str, number: float
) -> Finding:
    message = f"{name} is from {values.low:g} to {values.high:g} here, and {verdict}"
    if values.high == INFINITY:
        message = f"{name} is {values.low:g} or more here, and {verdict}"
    fix = f"use {number / 100:g}" if values == SHARE and 1 < number <= 100 else ""
    return finding("W818", place, message, fix=fix)


def asks_for_router(expression: Expression) -> bool:
    """Returns whether a query asks for a metric that only the router exports."""
    return any(OTHER_PROGRAMS.get(each.name) == ROUTER for each in expression.selectors)


def _labels_of(looked_up: Found) -> frozenset[str] | None:
    labels = looked_up.family.labels
    if labels is not None and looked_up.suffix == "_bucket":
        return labels | {BUCKET_BOUND}
    return labels


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))


def _known_bound(value: str, family: Family) -> str:
    """Returns the text of a bound as the server writes it; the value itself if unsure."""
    if value == "+Inf" or VARIABLE.search(value) or MARKER in value:
        return value
    try:
        number = float(value)
    except ValueError:
        return ""
    if family.has_token_bounds:
        digits = f"{number:e}"
        is_step = number >= 1 and digits[:8] in ("1.000000", "2.000000", "5.000000")
        return f"{number:.1f}" if is_step and number < 1e15 else ""
    if family.bounds is None:
        return value
    return str(number) if number in family.bounds else ""


def _near_bounds(value: str, family: Family) -> list[str]:
    """Returns the bounds around a number."""
    try:
        number = float(value)
    except ValueError:
        return []
    bounds = family.bounds or ()
    below = [bound for bound in bounds if bound < number]
    above = [bound for bound in bounds if bound > number]
    return [f'"{float(bound)}"' for bound in (*below[-1:], *above[:1])]
