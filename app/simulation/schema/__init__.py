"""Placeholder until the real package replaces this file."""
from __future__ import annotations
from collections.abc import Mapping
from random import Random
from typing import Any
from msgspec import Struct


class SchemaError(ValueError):
    """."""


class Ranges(Struct, frozen=True):
    @classmethod
    def of(cls, settings: Any) -> Ranges:
        return cls()


def sample(schema: Mapping[str, Any] | bool, rng: Random, ranges: Ranges) -> Any:
    return {}


def matching_text(pattern: str, rng: Random) -> str:
    return ""


def check_schema(schema: Any, strict: bool) -> None:
    return None
