"""Strings of a format are of that format, as independent readers see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from ipaddress import IPv4Address, IPv6Address
from random import Random
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from app.engine.forms.schema import Ranges
from app.engine.forms.schema.formats import CHECKER, DRAWS
from tests.schema.drawing import sample

READERS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "uuid": UUID,
    "uri": lambda text: urlsplit(text).netloc,
    "regex": re.compile,
    "email": lambda text: re.fullmatch(r"[a-z.]+@[a-z.]+", text),
    "hostname": lambda text: re.fullmatch(r"[a-z]+(\.[a-z]+)+", text),
    "duration": lambda text: re.fullmatch(r"P\d+DT\d+H", text),
    "json-pointer": lambda text: text.startswith("/"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_format_is_kept(name: str) -> None:
    for seed in range(40):
        text = sample({"type": "string", "format": name}, Random(seed), Ranges())
        assert CHECKER.conforms(text, name)
        assert READERS.get(name, str)(text)


def test_moments_and_what_the_library_knows_are_told_apart() -> None:
    for name, text in (
        ("date", "2026-02-30"),
        ("date-time", "2026-03-14 09:30:00Z"),
        ("date-time", "2026-02-30T09:30:00Z"),
        ("date-time", "2026-02-03T09:30:00"),
        ("uuid", "9b2f6f0e"),
    ):
        assert not CHECKER.conforms(text, name)
    assert CHECKER.conforms("2026-02-03t09:30:00.25z", "date-time")


def test_a_format_and_a_length_are_kept_together() -> None:
    schema = {"type": "string", "format": "email", "minLength": 20, "maxLength": 26}
    for seed in range(20):
        text = sample(schema, Random(seed), Ranges())
        assert "@" in text
        assert 20 <= len(text) <= 26
