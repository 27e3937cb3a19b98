"""Rules of load reports that differ between versions of vLLM."""

from msgspec import Struct


class LoadReportRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    reports: bool = True
    """Answers have the load if the request asks for it."""
