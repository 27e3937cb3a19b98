"""What is logged, and how."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and how."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] = setting(
        "info", help="Least severe level that is logged."
    )
    log_format: Literal["text", "json"] = setting("text", help="Lines for people or JSON objects.")
    access_log: bool = setting(False, help="Log a line for each request when its answer has been sent.")
    log_http: bool = setting(
        False,
        live=True,
        help="Log method, path, headers and body of every request and of every whole answer; secrets masked.",
    )
