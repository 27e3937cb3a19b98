"""Settings of the journal."""

from typing import Annotated

from msgspec import Meta

from config.declaration import Section


class JournalSettings(Section, frozen=True, kw_only=True):
    """The journal of requests and replies."""

    journal: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    """Maximum number of requests, within 16 MiB, that GET /admin/journal shows with their replies;
    0 disables the journal. Empty is 1000 with a console or a script, otherwise 0."""
