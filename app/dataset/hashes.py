"""How a prompt is found again: the two kinds of `prompt_hash` (simulator.md 5.10)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256

Turn = tuple[str, str]
"""Role and text of a message; a text prompt is one turn of the user."""

ROLES = frozenset({"user", "assistant"})


def ids_hash(ids: Sequence[int]) -> bytes:
    """SHA-256 of the prompt's token ids, four bytes each, the lowest first."""
    return sha256(struct.pack(f"<{len(ids)}I", *ids)).digest()


def text_hash(turns: Iterable[Turn]) -> bytes:
    """SHA-256 of the prompt's text with a headline per turn, as older files have it."""
    heads = ((role if role in ROLES else "unknown", text) for role, text in turns)
    written = "".join(f"### {role}:\n{text}\n" for role, text in heads)
    return sha256(written.encode("utf-8", "surrogatepass")).digest()
