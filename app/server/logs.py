"""What a log line looks like: text or JSON, UTC, and the id of its request on every line."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

from gunicorn.glogging import Logger
from pythonjsonlogger.json import JsonFormatter

from app.http.context import RequestContext, current_request
from app.http.wsgi import CONTEXT
from config.sections.observability import TRACE
from config.settings import LogSettings

USUAL = ("Starting gunicorn", "Using worker", "Booting worker")
"""How gunicorn's lines begin that say nothing of this start (`app.server.greeting` does)."""
NO_REQUEST = "-"
logging.addLevelName(TRACE, "TRACE")

TEXT = "%(asctime)s %(levelname)s [%(process)d] [%(request_id)s] %(name)s: %(message)s"
JSON = "%(asctime)s %(levelname)s %(process)d %(request_id)s %(name)s %(message)s"
JSON_NAMES = {"asctime": "time", "levelname": "level", "process": "pid", "name": "logger"}


def current_request_id() -> str:
    """Id of the current request, or a dash."""
    context = current_request.get()
    return NO_REQUEST if context is None else context.request_id


class RequestId(logging.Filter):
    """Puts the id of the current request on a record that has none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "request_id"):
            record.request_id = current_request_id()
        return True


class AccessFields(logging.Filter):
    """Turns the atoms of gunicorn's access log into fields of the record and a short message.

    Fields: client, method, path (as sent, without the query), status, bytes, duration (seconds), request_id.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, Mapping):
            fields = _access_fields(record.args)
            record.__dict__.update(fields)
            record.msg = "{method} {path} {status} {bytes} bytes {duration:.3f} s".format(**fields)
            record.args = None
        return True


class _AccessLine(TypedDict):
    client: object
    method: object
    path: str
    status: int
    bytes: int
    duration: float
    request_id: object


def _access_fields(atoms: Mapping[str, object]) -> _AccessLine:
    path = str(atoms.get("{raw_uri}e") or atoms.get("U") or "-").partition("?")[0]
    context = atoms.get(f"{{{CONTEXT}}}e")
    identifier = context.request_id if isinstance(context, RequestContext) else ""
    return {
        "client": atoms.get("h"),
        "method": atoms.get("m"),
        "path": path if path.isprintable() else path.encode("unicode_escape").decode(),
        "status": _whole(atoms.get("s")),
        "bytes": _whole(atoms.get("B")),
        "duration": _whole(atoms.get("D")) / 1_000_000,
        "request_id": identifier or current_request_id(),
    }


def _whole(atom: object) -> int:
    """A number of an access line; 0 when it is not known."""
    return int(str(atom or 0))


class _UtcTime(logging.Formatter):
    """ISO 8601 in UTC with milliseconds."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(_UtcTime):
    """Lines for people."""


class JsonLines(_UtcTime, JsonFormatter):
    """One JSON object a line; fields given as `extra` become keys."""


class ServerLogger(Logger):  # type: ignore[misc]
    """gunicorn's logger, which does no work for access lines that are not written."""

    is_start = True
    """The first worker of each rank is yet to come."""

    def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """A line of gunicorn's that every start has is told as debugging."""
        write = super().debug if self.is_start and msg.startswith(USUAL) else super().info
        write(msg, *args, **kwargs)

    @property
    def access_log_enabled(self) -> bool:
        return bool(self.access_log.isEnabledFor(logging.INFO))

    def access_line(self, context: RequestContext, status: int, bytes_sent: int, seconds: float) -> None:
        """Write the line of an exchange that did not pass through gunicorn's own response."""
        atoms = {
            "h": context.client,
            "m": context.method,
            "{raw_uri}e": context.target,
            "s": str(status),
            "B": bytes_sent,
            "D": int(seconds * 1_000_000),
            f"{{{CONTEXT}}}e": context,
        }
        self.access_log.info("", atoms)


def logconfig(settings: LogSettings) -> dict[str, object]:
    """A `logging.config` dictionary for gunicorn's `logconfig_dict` and for any other process of ours.

    Access lines go to stdout (or nowhere), everything else to stderr.
    """
    level = settings.log_level.upper()
    console = {"class": "logging.StreamHandler", "formatter": "lines"}
    access = {"level": "INFO", "handlers": ["access"]} if settings.access_log else {"level": "CRITICAL"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request": {"()": RequestId}, "access": {"()": AccessFields}},
        "formatters": {"lines": _formatter(settings)},
        "handlers": {
            "console": {**console, "stream": "ext://sys.stderr", "filters": ["request"]},
            "access": {**console, "stream": "ext://sys.stdout", "filters": ["access", "request"]},
        },
        "root": {"level": level, "handlers": ["console"]},
        "loggers": {
            "gunicorn.error": {"level": level, "handlers": ["console"], "propagate": False},
            "gunicorn.access": {"handlers": [], "propagate": False, **access},
            "app": {"level": level},
        },
    }


def _formatter(settings: LogSettings) -> dict[str, object]:
    if settings.log_format == "json":
        return {"()": JsonLines, "format": JSON, "rename_fields": JSON_NAMES}
    return {"()": TextLines, "format": TEXT}
