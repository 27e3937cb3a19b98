"""Settings of the console."""

from config.declaration import Section


class ConsoleSettings(Section, frozen=True, kw_only=True):
    """The console."""

    console: bool = False
    """Serve a page at /console for monitoring and controlling the server. For details, see
    docs/console.md."""
