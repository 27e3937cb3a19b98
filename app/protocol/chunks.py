"""What surrounds the choices in an event of a chat's or a completion's stream: UNSET is left out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from app.protocol.usage import Usage


class ChunkHead(Struct):
    """What every event begins with. `created` is Unix seconds."""

    id: str
    object: str
    created: int
    model: str


class ChunkTail(Struct):
    """What some events have after their choices."""

    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | None | UnsetType = UNSET
    prompt_text: str | None | UnsetType = UNSET


NO_TAIL = ChunkTail()
