"""The fields of a choice that every engine needs, also one in another process."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from app.core.engine.sampling import Sampling


class Thoughts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Thoughts before a text that has a form: any tokens up to `end_id`."""

    end_id: int
    begin_id: int | None = None
    """Token that begins the thoughts; None: the prompt has begun the thoughts."""


class TextForm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Required form of a text: one of these fields."""

    json_schema: str | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    grammar: str | None = None
    structural_tag: str | None = None
    thoughts: Thoughts | None = None
    """None: the form holds from the first token."""


class ChoiceRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of `EngineRequest` that an engine in another process needs, too."""

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    """Maximum reply tokens, already limited to the context's remaining room."""
    arrival_s: float
    """In monotonic seconds."""
    sampling: Sampling = Sampling()
    """The parameters of the client, whole."""
    form: TextForm | None = None
    priority: int = 0
    """Lower runs earlier, under a scheduling policy with priorities."""
    cache_salt: str | None = None
    """Prompts with different salts share no cached block."""
