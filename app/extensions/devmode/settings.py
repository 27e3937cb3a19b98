"""Settings of the routes for developers."""

from config.declaration import Section


class DevelopmentSettings(Section, frozen=True, kw_only=True):
    """Routes for developers."""

    enable_sleep_mode: bool = True
    """Enable the sleep and wake_up routes, which also require server-dev-mode."""
