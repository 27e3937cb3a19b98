"""The calls of models in exports of OpenTelemetry: `calls_in`.

A call is a span, the log records of its events, or both. The file exporter of the collector writes
OTLP in JSON, with typed values; the console exporters of SDKs write spans with plain values.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from config.untrusted import INVALID
from workbench.imports.fixture_format import Record
from workbench.imports.imported_script import Json
from workbench.imports.records import first_of

PREFIX = "gen_ai."
RESOURCES = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")
SCOPES = (
    *("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "ilSpans"),
    *("scopeLogs", "scope_logs"),
)
RECORDS = ("spans", "logRecords", "log_records")
TRACE_KEYS = ("traceId", "trace_id")
SPAN_KEYS = ("spanId", "span_id")
EVENT_NAME_KEYS = ("eventName", "event_name")
ERROR_CODES = (2, "2", "STATUS_CODE_ERROR", "ERROR", "StatusCode.ERROR")


@dataclass
class Call:
    """A call of a model.

    Attributes:
        attributes: Attributes of the span, by name.
        events: Name and attributes of each event.
        error: Description of the span's error; None for a span without an error.
    """

    attributes: Json = field(default_factory=dict)
    events: list[tuple[str, Json]] = field(default_factory=list)
    error: str | None = None

    def value(self, *names: str) -> Any:
        """Returns the first of these attributes, which an event may have; None without any."""
        value = first_of(self.attributes, names)
        for _, attributes in self.events:
            if value is None:
                value = first_of(attributes, names)
        return value

    @property
    def is_of_model(self) -> bool:
        """True if the name of an attribute or an event begins with `PREFIX`."""
        names = (name for name, _ in self.events)
        return any(name.startswith(PREFIX) for name in (*self.attributes, *names))


def calls_in(records: Iterable[Record]) -> list[Call]:
    """Returns the calls, in order. Records of another form have none."""
    calls: dict[object, Call] = {}
    for record in records:
        for item in _items_of(record.fields):
            try:
                _add(calls, item)
            except INVALID:
                continue
    return [call for call in calls.values() if call.is_of_model]


def _items_of(fields: Json) -> Iterator[Json]:
    """Yields the spans and log records of an export, or the object itself, if it is a span."""
    if isinstance(fields.get("attributes"), dict):
        yield fields
    for resource in _objects(fields, RESOURCES):
        for scope in _objects(resource, SCOPES):
            yield from _objects(scope, RECORDS)


def _objects(fields: Mapping[str, Any], names: Iterable[str]) -> Iterator[Json]:
    """Yields the objects in the lists of these names."""
    for name in names:
        values = fields.get(name)
        for value in values if isinstance(values, list) else ():
            if isinstance(value, dict):
                yield value


def _add(calls: dict[object, Call], item: Json) -> None:
    """Adds a span, or a log record, to the call with its ID.

    Raises:
        one of INVALID: it has another form.
    """
    attributes = attributes_of(item.get("attributes"))
    context = item.get("context")
    ids = context if isinstance(context, dict) else item
    key: object = (str(first_of(ids, TRACE_KEYS)), str(first_of(ids, SPAN_KEYS)))
    if first_of(ids, SPAN_KEYS) is None:
        key = len(calls)
    call = calls.setdefault(key, Call())
    event_name = first_of(item, EVENT_NAME_KEYS, attributes.get("event.name"))
    body = _plain(item.get("body"))
    if event_name is not None or "body" in item:
        if isinstance(body, dict):
            attributes |= body
        call.events.append((str(event_name), attributes))
        return
    call.attributes |= attributes
    for event in _objects(item, ("events",)):
        call.events.append((str(event.get("name")), attributes_of(event.get("attributes"))))
    status = item.get("status")
    if isinstance(status, dict) and first_of(status, ("code", "status_code")) in ERROR_CODES:
        call.error = str(first_of(status, ("message", "description"), ""))


def attributes_of(attributes: object) -> Json:
    """Returns attributes with plain values."""
    if isinstance(attributes, dict):
        return dict(attributes)
    if not isinstance(attributes, list):
        return {}
    return {str(pair["key"]): _plain(pair.get("value")) for pair in attributes}


def _plain(value: Any) -> Any:
    """Returns a value of OTLP without its type; other values unchanged."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, content)] = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_plain(item) for item in content.get("values") or ()]
    if kind == "kvlistValue":
        return attributes_of(content.get("values"))
    if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        return content
    return value
