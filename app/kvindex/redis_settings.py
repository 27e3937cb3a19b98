"""How Redis is reached. Apart from the backend, whose client takes long to import."""

from __future__ import annotations

from msgspec import Struct

from app.kvindex.memory import MOST_HOLDERS


class RedisSettings(Struct, frozen=True, kw_only=True):
    """`url` is of redis, rediss, valkey, valkeys or unix, or only host and port.

    All keys begin with `namespace`. A block that nobody has stored for `ttl_s` seconds is forgotten, with 0
    never; `size` then tells what was stored and not removed. `timeout_s` is for one call.
    """

    url: str = "redis://127.0.0.1:6379"
    namespace: str = "kvindex"
    ttl_s: int = 0
    timeout_s: float = 1.0
    most_holders: int = MOST_HOLDERS
    count_repeats: bool = True
