"""Log lines: text or JSON, in UTC, with the request's id on every line."""

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gunicorn.glogging import Logger
from gunicorn.instrument.statsd import Statsd
from pythonjsonlogger.json import JsonFormatter

from app.core.base.limited_log import LimitedLog
from app.core.server.http.context import CONTEXT, RequestContext, current_request
from app.core.server.http.response import Response
from config.sections.observability import TRACE
from config.settings import LogSettings

if TYPE_CHECKING:
    from gunicorn.config import Config

ROUTINE_LINES = ("Starting gunicorn", "Using worker", "Booting worker")
"""Beginnings of gunicorn's lines that are the same at every start; logged as debug."""
INVALID_REQUEST = "Invalid request from"
"""Beginning of gunicorn's line about a request that cannot be parsed."""
MAX_LINE_CHARS = 2000
"""Most characters of a warning or an error: clients and peers can send megabytes to be quoted."""
ACCESS = "gunicorn.access"
SHOWN_NAMES = {"gunicorn.error": "server"}
"""Names of loggers in lines. gunicorn's own suggests an error where there is none."""
TEXT = "%(asctime)s %(levelname)s [%(process)d] [%(request_id)s] %(name)s: %(message)s"
JSON = "%(asctime)s %(levelname)s %(process)d %(request_id)s %(name)s %(message)s"
JSON_NAMES = {"asctime": "time", "levelname": "level", "process": "pid", "name": "logger"}

logging.addLevelName(TRACE, "TRACE")


class ServerLogger(Statsd):  # type: ignore[misc]
    """gunicorn's logger; logs to stdout and stderr unless gunicorn's flags name other targets."""

    log_settings = LogSettings()
    """The settings passed to `logger_class`."""
    is_start = True
    """True until the first worker of each rank has started."""

    def __init__(self, cfg: "Config") -> None:
        if cfg.statsd_host is not None:
            super().__init__(cfg)
        else:
            Logger.__init__(self, cfg)
            self.prefix = ""
            self.dogstatsd_tags = ""
            self.sock = None
        self._invalid_requests = LimitedLog(self.error_log)

    def setup(self, cfg: "Config") -> None:
        """Configures logging at the start and at a reload.

        --log-config and its variants override `log_settings`.
        """
        super().setup(cfg)
        # A line for a full disk is lost; its traceback would show headers of requests on stderr.
        logging.raiseExceptions = False
        if cfg.logconfig_dict or cfg.logconfig_json or cfg.logconfig:
            return
        settings: LogSettings = getattr(cfg.logger_class, "log_settings", self.log_settings)
        root = logging.getLogger()
        root.handlers[:] = [
            handler for handler in root.handlers if not hasattr(handler, "_gunicorn")
        ]
        if cfg.errorlog is not None:
            handler = self._get_gunicorn_handler(self.error_log)
            _format_lines(handler, settings)
            root.addHandler(handler)
        for logger in (root, logging.getLogger("app")):
            logger.setLevel(cfg.loglevel.upper())
        # At --log-level debug, hpack would log the API keys of clients.
        logging.getLogger("hpack").setLevel(logging.INFO)
        if settings.access_log and cfg.accesslog is None:
            self._set_handler(self.access_log, "-", None, sys.stdout)
            _format_lines(self._get_gunicorn_handler(self.access_log), settings)

    def reopen_files(self) -> None:
        """Opens the log files again, after a rotation; keeps those that cannot be opened.

        gunicorn would close its files before it fails, and each further line would be an error.
        """
        for logger in (logging.getLogger(), self.error_log, self.access_log):
            for handler in logger.handlers:
                if isinstance(handler, logging.FileHandler):
                    try:
                        open(handler.baseFilename, "a").close()
                    except OSError as error:
                        self.error("log file %s: %s", handler.baseFilename, error.strerror)
                        return
        super().reopen_files()

    def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Logs at level info; routine lines of gunicorn's start at level debug."""
        if self.is_start and msg.startswith(ROUTINE_LINES):
            super().debug(msg, *args, **kwargs)
        else:
            super().info(msg, *args, **kwargs)

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Logs a warning; at most one a second about invalid requests."""
        if not msg.startswith(INVALID_REQUEST) or self._invalid_requests.begin_line():
            super().warning(msg, *args, **kwargs)

    @property
    def access_log_enabled(self) -> bool:
        """True if each request is logged, or counted by statsd."""
        log = self.access_log
        return self.cfg.statsd_host is not None or (
            log.hasHandlers() and log.isEnabledFor(logging.INFO)
        )


def logger_class(settings: LogSettings) -> type[ServerLogger]:
    """Returns a class for gunicorn's setting `logger_class`; gunicorn creates the instance."""
    return type("ServerLogger", (ServerLogger,), {"log_settings": settings})


def shortened(text: str) -> str:
    """Returns the beginning of a long text, with its length."""
    if len(text) <= MAX_LINE_CHARS:
        return text
    return f"{text[:MAX_LINE_CHARS]}... ({len(text)} characters)"


def log_exchange(log: Logger, context: RequestContext, response: Response) -> None:
    """Writes the access line of a request that has no WSGI environ."""
    path, _, query = context.target.partition("?")
    environ: dict[str, object] = {}
    for name, value in context.headers.items():
        environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
    environ |= {
        "REMOTE_ADDR": context.client,
        "REQUEST_METHOD": context.method,
        "RAW_URI": context.target,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": context.http_version,
        CONTEXT: context,
    }
    answer = SimpleNamespace(
        status=response.status_line, sent=response.bytes_sent, headers=response.headers
    )
    duration = timedelta(seconds=time.monotonic() - context.arrival_s)
    log.access(answer, context.headers, environ, duration)


class RequestFields(logging.Filter):
    """Adds the request's id; converts the atoms of gunicorn's access log to fields and a message.

    Shortens long warnings and errors.

    Fields: client, method, path (as sent, without the query), status, bytes, duration (seconds),
    request_id.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the fields to `record`; returns True."""
        atoms = record.args
        context = current_request.get()
        if record.name == ACCESS and isinstance(atoms, Mapping):
            path = str(atoms.get("{raw_uri}e") or atoms.get("U") or "-").partition("?")[0]
            if not path.isprintable():
                path = path.encode("unicode_escape").decode()
            context = atoms.get(f"{{{CONTEXT}}}e") or context  # type: ignore[assignment]
            fields: dict[str, Any] = {
                "client": atoms.get("h"),
                "method": atoms.get("m"),
                "path": path,
                "status": int(str(atoms.get("s") or 0)),
                "bytes": int(str(atoms.get("B") or 0)),
                "duration": int(str(atoms.get("D") or 0)) / 1_000_000,
            }
            record.__dict__.update(fields)
            record.msg = "{method} {path} {status} {bytes} bytes {duration:.3f} s".format(**fields)
            record.args = None
        if record.levelno >= logging.WARNING:
            with suppress(TypeError, ValueError):  # the handler reports a wrong format
                record.msg = shortened(record.getMessage())
                record.args = None
        record.name = SHOWN_NAMES.get(record.name, record.name)
        if not hasattr(record, "request_id"):
            record.request_id = "-" if context is None else context.request_id
        return True


class TextLines(logging.Formatter):
    """Lines for people. Times are ISO 8601 in UTC with milliseconds."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatException(self, ei: Any) -> str:  # noqa: N802 (the name of the standard library)
        """Returns a traceback with shortened lines."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(map(shortened, lines))


class JsonLines(TextLines, JsonFormatter):
    """One JSON object per line; fields passed as `extra` become keys."""


def _format_lines(handler: logging.Handler, settings: LogSettings) -> None:
    if settings.log_format == "json":
        handler.setFormatter(JsonLines(JSON, rename_fields=JSON_NAMES))
    else:
        handler.setFormatter(TextLines(TEXT))
    handler.addFilter(RequestFields())
