"""Settings of the journal."""

from typing import Annotated

from msgspec import Meta

from config.declaration import Section


class JournalSettings(Section, frozen=True, kw_only=True):
    """The journal of requests and replies."""

    journal: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    """Maximum number of requests that GET /admin/journal shows with their replies. Their total size
    is limited to 16 MiB. The value 0 disables the journal. If this setting is empty, the limit is
    1,000 with the console or a script, and 0 otherwise."""
