"""Text formats of JSON Schema: random texts, and the checker of validation."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

from jsonschema import FormatChecker

WORDS = (
    "amber",
    "birch",
    "cobalt",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "iris",
    "juniper",
)
"""Words for texts without a hint."""
FIRST_MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
SPAN_SECONDS = 3 * 365 * 24 * 3600
"""Drawn moments are within this time of the first."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
HOSTS = ("example.com", "example.org", "example.net", "api.example.com", "shop.example.org")
EMAIL_HOSTS = HOSTS[:3]
CHECKED_FORMATS = ("date", "email", "idn-email", "ipv4", "ipv6", "uuid")
"""Formats that `jsonschema` checks without further packages."""


def format_writers() -> Mapping[str, Callable[[Random], str]]:
    """Returns the function that draws a text for each format."""
    return {
        "date-time": _draw_moment,
        "date": _draw_date,
        "time": _draw_time,
        "duration": _draw_duration,
        "email": _draw_email,
        "idn-email": _draw_email,
        "hostname": _draw_host,
        "idn-hostname": _draw_host,
        "ipv4": _draw_ipv4,
        "ipv6": _draw_ipv6,
        "uri": _draw_uri,
        "iri": _draw_uri,
        "uri-reference": _draw_path,
        "iri-reference": _draw_path,
        "uri-template": _draw_uri_template,
        "uuid": _draw_uuid,
        "json-pointer": _draw_path,
        "relative-json-pointer": _draw_relative_pointer,
        "regex": _draw_regex,
    }


def format_checker() -> FormatChecker:
    """Returns the checker of formats that alternatives of a schema may differ in.

    It has the checks of `jsonschema` that need no further package, and one of moments (RFC 3339).
    """
    checker = FormatChecker(CHECKED_FORMATS)

    @checker.checks("date-time", raises=ValueError)
    def is_moment(text: object) -> bool:
        if not isinstance(text, str):
            return True
        if MOMENT.fullmatch(text) is None:
            return False
        datetime.fromisoformat(text.upper())
        return True

    return checker


def _draw_moment(rng: Random) -> str:
    moment = FIRST_MOMENT + timedelta(seconds=rng.randrange(SPAN_SECONDS))
    return f"{moment.isoformat()[:19]}Z"  # without the offset


def _draw_date(rng: Random) -> str:
    return _draw_moment(rng)[:10]


def _draw_time(rng: Random) -> str:
    return _draw_moment(rng)[11:]


def _draw_duration(rng: Random) -> str:
    return f"P{rng.randint(1, 9)}DT{rng.randint(1, 23)}H"


def _draw_email(rng: Random) -> str:
    return f"{rng.choice(WORDS)}.{rng.choice(WORDS)}@{rng.choice(EMAIL_HOSTS)}"


def _draw_host(rng: Random) -> str:
    return rng.choice(HOSTS)


def _draw_ipv4(rng: Random) -> str:
    return f"192.0.2.{rng.randint(1, 254)}"


def _draw_ipv6(rng: Random) -> str:
    return f"2001:db8::{rng.randint(1, 0xFFFF):x}"


def _draw_uri(rng: Random) -> str:
    return f"https://{rng.choice(HOSTS)}{_draw_path(rng)}"


def _draw_path(rng: Random) -> str:
    return "".join(f"/{rng.choice(WORDS)}" for _ in range(rng.randint(1, 2)))


def _draw_uri_template(rng: Random) -> str:
    return f"https://{rng.choice(HOSTS)}/{{{rng.choice(WORDS)}}}"


def _draw_uuid(rng: Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


def _draw_relative_pointer(rng: Random) -> str:
    return f"{rng.randint(0, 3)}{_draw_path(rng)}"


def _draw_regex(rng: Random) -> str:
    return f"^{rng.choice(WORDS)}[0-9]+$"
