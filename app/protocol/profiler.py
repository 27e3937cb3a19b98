"""``POST /start_profile``."""

from __future__ import annotations

import re

from app.http.errors import bad_request, malformed
from app.protocol.decoding import RawRequest, Request

PREFIX = re.compile(r"[a-zA-Z0-9][\w.-]{0,127}", re.ASCII)
KINDS = {"profile_prefix": str, "delay_iterations": int, "max_iterations": int}


class StartProfileRequest(Request, kw_only=True):
    """The body, whose fields vLLM converts from no other type."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None

    def check_rules(self: StartProfileRequest | RawRequest) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise malformed(f"body.{name}: expected {kind.__name__}", f"body.{name}")
        if self.profile_prefix is not None and not PREFIX.fullmatch(self.profile_prefix):
            raise bad_request("profile_prefix must be up to 128 letters, digits and ._-, the first no sign")
        for name in ("delay_iterations", "max_iterations"):
            if (getattr(self, name) or 0) < 0:
                raise bad_request(f"{name} must be 0 or more")
