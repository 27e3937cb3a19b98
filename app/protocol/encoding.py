"""The one encoder of all JSON that leaves."""

from __future__ import annotations

from msgspec.json import Encoder

encode = Encoder().encode
"""The compact JSON of a struct, a list, a text ...; UnicodeEncodeError for a lone surrogate."""
