"""Draws and checks of texts by ``format``: dates, addresses, host names and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType
from uuid import UUID

from jsonschema import FormatChecker

WORDS = ("amber", "birch", "cobalt", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper")
"""Texts for property names without a hint."""

NAMED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "city": ("Lisbon", "Nairobi", "Osaka", "Quito", "Tromso"),
        "country": ("Portugal", "Kenya", "Japan", "Ecuador", "Norway"),
        "location": ("Lisbon, Portugal", "Osaka, Japan", "Quito, Ecuador"),
        "address": ("12 Mill Lane", "7 Harbor Street", "48 Station Road"),
        "timezone": ("Europe/Lisbon", "Asia/Tokyo", "Africa/Nairobi"),
        "language": ("en", "pt", "ja", "sw"),
        "currency": ("EUR", "JPY", "KES", "NOK"),
        "email": ("ada@example.com", "kofi@example.org", "mei@example.net"),
        "phone": ("+1 555 0100", "+1 555 0142", "+1 555 0199"),
        "url": ("https://example.com/docs", "https://example.org/list"),
        "datetime": ("2026-03-14T09:30:00Z", "2026-10-02T18:00:00Z"),
        "timestamp": ("2026-03-14T09:30:00Z", "2026-10-02T18:00:00Z"),
        "date": ("2026-03-14", "2026-07-21", "2026-10-02"),
        "time": ("09:30", "14:05", "18:00"),
        "unit": ("celsius", "meters", "kilograms"),
        "color": ("teal", "amber", "violet", "olive"),
        "username": ("ada", "kofi", "mei", "tomas"),
        "filename": ("notes.txt", "report.pdf", "plan.md"),
        "file": ("notes.txt", "report.pdf", "plan.md"),
        "path": ("/srv/notes.txt", "docs/plan.md", "/tmp/report.csv"),
        "name": ("Ada", "Kofi", "Mei", "Tomas"),
        "title": ("Weekly plan", "Garden notes", "First draft"),
        "query": ("rain tomorrow", "train to Porto", "bread without yeast"),
        "question": ("When does it open?", "How far is it?"),
        "description": ("A short note", "Two lines about the trip"),
        "message": ("See you at noon", "The parcel has arrived"),
        "content": ("A short note", "Three things to do today"),
        "text": ("A short note", "The parcel has arrived"),
        "code": ("print('hello')", "total = 1 + 2"),
        "id": ("a1b2c3", "k7m4q9", "x5t8w2"),
    }
)
"""Texts by the end of a property's name; the first match wins."""


def words_for(name: str) -> tuple[str, ...]:
    """Returns texts that suit a property called `name`, such as ``home_city`` or ``fileName``."""
    plain = "".join(filter(str.isalpha, name[-24:])).lower()
    for ending, texts in NAMED.items():
        if plain.endswith(ending):
            return texts
    return WORDS


FIRST = datetime(2024, 1, 1, tzinfo=UTC)
SPAN_S = 3 * 365 * 24 * 3600
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
HOSTS = ("example.com", "example.org", "example.net", "api.example.com", "shop.example.org")


def _moment(rng: Random) -> str:
    return (FIRST + timedelta(seconds=rng.randrange(SPAN_S))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _address(rng: Random) -> str:
    return f"{rng.choice(WORDS)}.{rng.choice(WORDS)}@{rng.choice(HOSTS[:3])}"


def _uri(rng: Random) -> str:
    return f"https://{rng.choice(HOSTS)}{_path(rng)}"


def _path(rng: Random) -> str:
    return "".join(f"/{rng.choice(WORDS)}" for _ in range(rng.randint(1, 2)))


DRAWS: Mapping[str, Callable[[Random], str]] = MappingProxyType(
    {
        "date-time": _moment,
        "date": lambda rng: _moment(rng)[:10],
        "time": lambda rng: _moment(rng)[11:],
        "duration": lambda rng: f"P{rng.randint(1, 9)}DT{rng.randint(1, 23)}H",
        "email": _address,
        "idn-email": _address,
        "hostname": lambda rng: rng.choice(HOSTS),
        "idn-hostname": lambda rng: rng.choice(HOSTS),
        "ipv4": lambda rng: f"192.0.2.{rng.randint(1, 254)}",
        "ipv6": lambda rng: f"2001:db8::{rng.randint(1, 0xFFFF):x}",
        "uri": _uri,
        "iri": _uri,
        "uri-reference": _path,
        "iri-reference": _path,
        "uri-template": lambda rng: f"https://{rng.choice(HOSTS)}/{{{rng.choice(WORDS)}}}",
        "uuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
        "json-pointer": _path,
        "relative-json-pointer": lambda rng: f"{rng.randint(0, 3)}{_path(rng)}",
        "regex": lambda rng: f"^{rng.choice(WORDS)}[0-9]+$",
    }
)


def _checker() -> FormatChecker:
    """Returns the checks of `jsonschema` that need no further package, and one of moments (RFC 3339)."""
    checker = FormatChecker(["date", "email", "idn-email", "ipv4", "ipv6", "uuid"])

    @checker.checks("date-time", raises=ValueError)
    def is_moment(text: object) -> bool:
        return not isinstance(text, str) or (
            MOMENT.fullmatch(text) is not None and datetime.fromisoformat(text.upper()) is not None
        )

    return checker


CHECKER = _checker()
"""Checks of formats that alternatives of a schema may differ in; others are only drawn."""
