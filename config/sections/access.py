"""Who may ask, from where, and how often."""

from dataclasses import dataclass

from config.fields import setting
from config.rules import at_least, no_empty_items, not_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may ask, from where, and how often."""

    api_key: tuple[str, ...] = setting(
        (),
        env=("VLLM_API_KEY",),
        live=True,
        secret=True,
        help="Keys of which a request below /v1, /v2, /inference and /cohere must bear one; none when empty.",
        rule=no_empty_items(),
    )
    admin_key: str | None = setting(
        None,
        live=True,
        secret=True,
        help="Key that requests below /admin must bear. When empty they bear an API key, if there are any.",
        rule=not_empty(),
    )
    allowed_origins: tuple[str, ...] = setting(
        (), help="Origins that browsers may ask from (CORS); * is every one. Empty switches CORS off."
    )
    allowed_methods: tuple[str, ...] = setting(("*",), help="Methods that CORS allows.")
    allowed_headers: tuple[str, ...] = setting(("*",), help="Headers that CORS allows.")
    allow_credentials: bool = setting(False, help="Let CORS requests carry credentials.")
    requests_per_minute: int | None = setting(
        None,
        unit="requests",
        live=True,
        help="Generating requests that each key (or, without one, each address) may make; empty is no limit.",
        rule=at_least(1),
    )
    tokens_per_minute: int | None = setting(
        None,
        unit="tokens",
        live=True,
        help="Prompt and reply tokens that each key (or address) may use; empty is no limit.",
        rule=at_least(1),
    )
