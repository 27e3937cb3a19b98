"""Settings of rate limits."""

from typing import Annotated

from config.declaration import About, Count, Section


class RateLimitSettings(Section, frozen=True, kw_only=True):
    """Limits of requests and tokens per minute, for each client."""

    requests_per_minute: Annotated[Count | None, About(unit="requests", live=True)] = None
    """Maximum number of generation requests per API key or, if no key is sent, per address. If this
    setting is empty, there is no limit."""
    tokens_per_minute: Annotated[Count | None, About(unit="tokens", live=True)] = None
    """Maximum number of prompt and reply tokens per API key or, if no key is sent, per address. If
    this setting is empty, there is no limit."""

    @property
    def has_limit(self) -> bool:
        """True if clients are limited."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None
